"""Search in both directions beside a scan of everything, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.formats.vocabulary import write_vocabulary
from tests.tiny_model import TRAIN, run_search, save_tiny
from tests.tiny_results import FEATURE_DIM, RECIPE, TEXTS, WORDS, TinyResults
from trainer import search
from trainer.model import build_model, load_model


def scanned(tiny: TinyResults) -> tuple[dict[tuple, np.ndarray], object]:
    """Each clip's embedding, one at a time, and the model."""
    model, _ = load_model(tiny.root / "train/model.pt")
    clips = {}
    for video_id in ("a.1", "b", "c"):
        for start in (0, 2, 4):
            rows = torch.tensor(tiny.features[video_id][start : start + 2].astype(np.float32))
            vector = model.embed_clips(rows[None], torch.ones(1, 2) > 0)[0].numpy()
            clips[video_id, float(start), start + 2.0] = vector
    return clips, model


def text_vector(model, text: str) -> np.ndarray:
    """The embedding of known words."""
    return model.embed_captions(torch.tensor([[WORDS.index(w) + 1 for w in text.split()]]))[0]


def test_a_text_finds_what_a_scan_of_all_clips_finds(tiny, capsys):
    found = run_search(tiny, "Fry, the RICE!", k=9)
    clips, model = scanned(tiny)
    query = text_vector(model, "fry the rice").numpy()
    expected = sorted(clips, key=lambda clip: -float(clips[clip] @ query))
    assert [(h["video_id"], h["start"], h["end"]) for h in found["hits"]] == expected
    for hit in found["hits"]:
        vector = clips[hit["video_id"], hit["start"], hit["end"]]
        assert hit["score"] == pytest.approx(float(vector @ query), abs=1e-5)
    assert found["searched"] == 9
    assert found["hits"][0]["path"] == f"videos/{expected[0][0]}.mp4"
    table = capsys.readouterr().out
    assert [line.split()[2] for line in table.splitlines()[1:]] == [clip[0] for clip in expected]


def test_a_moment_finds_what_a_scan_of_all_captions_finds(tiny):
    found = run_search(tiny, "--video=a.1", "--at=2.5", k=6)
    clips, model = scanned(tiny)
    query = clips["a.1", 2.0, 4.0]
    scores = {text: float(text_vector(model, text).numpy() @ query) for text in TEXTS}
    expected = sorted(scores, key=lambda text: -scores[text])
    assert [hit["text"] for hit in found["hits"]] == expected  # equal texts count once
    assert found["hits"][0]["score"] == pytest.approx(max(scores.values()), abs=1e-5)
    assert found["clip"]["start"] == 2.0
    assert found["clip"]["captions"][0]["text"] == "fry the rice"


def test_a_small_k_gives_the_first_of_a_large_one(tiny):
    assert run_search(tiny, "egg", k=2)["hits"] == run_search(tiny, "egg", k=9)["hits"][:2]


def test_distinct_hits_of_the_command_are_the_best_moments(tiny):
    # The clips of these videos do not overlap.
    assert run_search(tiny, "egg", "--distinct")["hits"] == run_search(tiny, "egg")["hits"]


def test_unknown_words_are_named_and_left_out(tiny, caplog):
    found = run_search(tiny, "flambé the egg slowly")
    assert found["unknown_words"] == ["flambé", "slowly"]
    assert found["hits"] == run_search(tiny, "the egg")["hits"]
    assert "flambé, slowly" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([""], "holds no word"),
        (["?! ..."], "holds no word"),
        (["flambé slowly"], r"none of the query's words \(flambé, slowly\)"),
        (["egg", "-k=10"], "-k is 10, but there are 9 clips"),
        (["egg", "-k=0"], "-k is 0"),
        (["--video=a.1", "--at=1", "-k=10"], "-k is 10, but there are 9 captions"),
        (["--video=a.1", "--at=99"], "covers 99 s; the nearest is 4 to 6 s"),
        (["--video=nobody", "--at=1"], "'nobody' is in no bag file"),
        (["--video=a.1"], "--video and --at"),
        ([], "give a text"),
        (["egg", "--video=a.1", "--at=1"], "give a text"),
        (["egg", "--results=nowhere"], "is --results right"),
    ],
)
def test_what_cannot_be_answered_is_one_clear_line(tiny, arguments, line):
    model = f"--model={tiny.root / 'train/model.pt'}"
    with pytest.raises((ValueError, FileNotFoundError), match=line):
        search.main([model, "-k=3", *arguments])


def test_a_model_of_another_vocabulary_or_recipe_is_refused(tiny):
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    save_tiny(tiny, model, recipe=replace(RECIPE, frame_size=224).to_dict())
    with pytest.raises(ValueError, match="frame_size 224 became 112"):
        run_search(tiny, "egg")
    write_vocabulary(tiny.root / "vocabulary.txt", WORDS[::-1])
    with pytest.raises(ValueError, match="another vocabulary"):
        run_search(tiny, "egg")


def test_json_goes_to_the_terminal_where_asked(tiny, capsys):
    found = run_search(tiny, "egg", "--json")
    assert json.loads(capsys.readouterr().out) == found
