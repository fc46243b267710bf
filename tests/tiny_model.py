"""A model of random weights on the tiny results, test clips, and what stages make of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.files import write_csv, write_json
from tests.synthetic_bags import train_settings
from tests.tiny_results import FEATURE_DIM, RECIPE, WORDS, TinyResults, make_results
from trainer import evaluate, search
from trainer.model import build_model, load_model, save_model

TRAIN = train_settings(
    seed=0, embedding_dim=6, word_dim=5, text_hidden=7, temperature=0.07, learn_temperature=False
)
LIST = [
    ("a.1", 0.0, 2.0, "cut the onion"),
    ("b", 1.0, 4.0, "fry the rice"),
    ("c", 3.1, 3.2, "boil water"),  # between two middles: the nearest row alone
    ("c", 4.0, 6.0, "cut the onion"),
]


def make_tested(root: Path) -> TinyResults:
    """Results with a model of random weights and a list of test clips."""
    made = make_results(root)
    save_tiny(made, build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS)))
    write_list(made, LIST)
    return made


def save_tiny(tiny: TinyResults, model, *, words: list[str] = WORDS, recipe: dict | None = None):
    """Write model.pt."""
    recipe = recipe or RECIPE.to_dict()
    path = tiny.root / "train/model.pt"
    save_model(path, model, vocabulary=words, recipe=recipe, step=7, max_caption_words=5)


def write_list(tiny: TinyResults, rows: list[tuple]) -> Path:
    """Write the list with its columns in another order and one more beside them."""
    path = tiny.root / "list.csv"
    shuffled = [(text, end, "x", start, video_id) for video_id, start, end, text in rows]
    write_csv(path, ["text", "end", "note", "start", "video_id"], shuffled)
    return path


def run_evaluate(
    tiny: TinyResults,
    clips: str | None = "list",
    max_missing: float = 0.1,
    *,
    name: str = "heldout",
    num_windows: int | None = None,
    **baseline: str,
) -> dict:
    """Run the stage as the workflow does."""
    root = tiny.root
    path = str(root / "list.csv") if clips == "list" else clips
    chosen = {"clips": path, "max_missing": max_missing, "num_windows": num_windows}
    settings = {"protocols": {name: chosen}, "baseline_weights": None, "baseline_words": None}
    write_json(root / "settings/evaluate.json", settings | baseline)
    places = {
        "model": "train/model.pt", "settings": "settings/evaluate.json", "plan": "plan",
        "bags": "bags", "shards": "shards", "vocabulary": "vocabulary.txt",
        "output": f"evaluate/{name}.json",
    }  # fmt: skip
    options = [f"--{option}={root / place}" for option, place in places.items()]
    evaluate.main([f"--protocol={name}", *options])
    return json.loads((root / f"evaluate/{name}.json").read_text())


def independent_similarities(tiny: TinyResults, rows: list[np.ndarray], texts: list[str]):
    """Texts by clips, one at a time, from the model's weights with numpy alone."""
    _, content = load_model(tiny.root / "train/model.pt")
    state = torch.load(tiny.root / "train/model.pt", weights_only=True)["state"]
    weights = {name: value.double().numpy() for name, value in state.items()}
    ids = {word: i for i, word in enumerate(content["vocabulary"], start=1)}

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x)

    def clip(x: np.ndarray) -> np.ndarray:
        pooled = x.astype(np.float64).mean(axis=0)
        return unit(weights["video.project.weight"] @ pooled + weights["video.project.bias"])

    def text(words: str) -> np.ndarray:
        vectors = [weights["text.words.weight"][ids[w]] for w in words.split() if w in ids]
        hidden = [weights["text.fc1.weight"] @ v + weights["text.fc1.bias"] for v in vectors]
        best = np.maximum(np.max(hidden, axis=0), 0)
        return unit(weights["text.fc2.weight"] @ best + weights["text.fc2.bias"])

    return np.array([[text(t) @ clip(x) for x in rows] for t in texts])


def rank_by_sorting(scores: np.ndarray, own: int) -> float:
    """The middle of the places that `own`'s score takes in the sorted scores."""
    places = [k for k, score in enumerate(sorted(scores, reverse=True), 1) if score == scores[own]]
    return float(np.mean(places))


def run_search(tiny: TinyResults, *arguments: str, k: int = 9) -> dict:
    """Search as by hand; return the JSON."""
    path = tiny.root / "found.json"
    model = f"--model={tiny.root / 'train/model.pt'}"
    search.main([model, *arguments, "-k", str(k), "--output", str(path)])
    return json.loads(path.read_text())
