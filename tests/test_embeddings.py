"""The stage `embeddings` beside what a search makes by itself."""

from __future__ import annotations

import numpy as np

from pipeline.formats.bags import read_bags
from tests.tiny_model import run_search
from trainer import embeddings


def test_the_stage_writes_what_search_would_make(tiny):
    run_search(tiny, "egg")
    made = [path.read_bytes() for path in sorted((tiny.root / "embeddings").iterdir())]
    for name in ("00000", "00001"):
        places = {
            "model": "train/model.pt", "bags": f"bags/{name}.npz", "tar": f"shards/{name}.tar",
            "output": f"embeddings/{name}.npy", "index": f"embeddings/{name}.parquet",
        }  # fmt: skip
        embeddings.main([f"--{key}={tiny.root / place}" for key, place in places.items()])
    assert [path.read_bytes() for path in sorted((tiny.root / "embeddings").iterdir())] == made
    vectors = np.load(tiny.root / "embeddings/00000.npy")
    assert len(vectors) == read_bags(tiny.root / "bags/00000.npz").num_clips
