"""Say in a few lines what a file of this project is: recipe, counts, ids, and whether it is whole.

Reads   any file of a results folder but its pages: plan and its order, settings, manifest,
        captions, shard, index, rejected.csv, bags, vocabulary, embeddings, model.pt, checkpoint,
        metrics, quarantine and other records of training, a result of evaluation or search
Writes  lines to the terminal; the exit status is 1 when a file is damaged, foreign or unknown
Run     python -m pipeline.tools.info results/shards/00000.tar
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.caption_summary import VERSION as SUMMARY
from pipeline.formats.caption_summary import read_caption_summary
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import read_json, read_text_file, sha256_of_file
from pipeline.formats.recipe import Recipe
from pipeline.formats.tags import CHECKPOINT, MODEL
from pipeline.tools import file_facts
from pipeline.tools.file_facts import Facts, recipe_facts, say_counts

HEAD = CHECKPOINT.encode() + b" "
RECORDS = {
    "quarantine.json": "what training leaves out",
    "identity.json": "what decides the result of a run",
    "source.json": "what a captions file was split into",
    "batch.json": "the batch that encoding found",
}
"""Files that are told by their names."""


def describe(path: Path) -> Facts:
    """What a file is.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or none of ours.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    known = READERS.get(path.suffix)
    if known is None:
        raise ValueError(f"{path}: no file of this project ends so; known: {', '.join(READERS)}")
    try:
        facts = known(path)
    except (LookupError, TypeError, AttributeError) as error:  # another's JSON has other keys
        raise ValueError(f"{path} is damaged, or none of ours: {error!r}") from None
    return {"file": f"{path} ({path.stat().st_size:,} bytes)", **facts}


def of_json(path: Path) -> Facts:
    """A result, a summary, or the frozen settings of a section."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is JSON, and none of ours: it holds no object")
    kind = found.get("format") or found.get("version")
    if kind == SUMMARY:
        summary = read_caption_summary(path)
        return {
            "what": "summary of all captions",
            "captions": f"{summary.captions:,} of {summary.videos:,} videos",
            "counts": say_counts(summary.counts),
        }
    shown = ("num_pairs", "text_to_video", "video_to_text", "mean_top1", "query", "searched")
    facts = {key.replace("_", " "): _plain(found[key]) for key in shown if key in found}
    if kind:
        name = found.get("protocol", {}).get("name", "")
        recipe = found.get("recipe_identity", "")
        sha256 = found.get("model", {}).get("sha256", "")
        return {"what": f"{kind} {name}".strip(), **facts, "recipe identity": recipe,
                "model sha256": sha256}  # fmt: skip
    return {"what": _what_record(path), **{key: _plain(value) for key, value in found.items()}}


def _what_record(path: Path) -> str:
    """What a JSON without a tag is, by its place."""
    if path.parent.name == "settings":
        return f"frozen section {path.stem} of the config"
    if path.name.startswith("start-step-"):
        return "what a start of training ran with"
    if path.name.startswith("not-finite-step-"):
        return "what a step that was not finite had; python -m trainer.train --replay explains it"
    if path.name not in RECORDS:
        raise ValueError(f"{path} is JSON, and none of ours: it has no format tag")
    return RECORDS[path.name]


def of_metrics(path: Path) -> Facts:
    """The lines of a training run."""
    try:
        lines = [json.loads(line) for line in read_text_file(path).splitlines()]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not whole: {error}") from None
    steps = [line for line in lines if "split" not in line]
    facts = {"what": "metrics of training", "lines": len(lines)}
    if steps:
        facts |= {"last step": steps[-1]["step"], "loss": steps[-1].get("loss")}
    return facts


def of_model(path: Path) -> Facts:
    """A trained model."""
    # Not at the top: it brings torch, which all other files do without.
    from pipeline.formats.tensors import check_sums, read_tensors

    check_sums(path, what="model file")
    content = read_tensors(path)
    if not isinstance(content, dict) or content.get("format") != MODEL:
        raise ValueError(f"{path} is a PyTorch file, and no model of this project")
    state = content["state"]
    finite = all(bool(value.isfinite().all()) for value in state.values())
    return {
        "what": f"trained model ({content['format']})",
        "step": content["step"],
        "numbers": f"{sum(value.numel() for value in state.values()):,}",
        "words": f"{len(content['vocabulary']):,}, {content['max_caption_words']} of a caption",
        **recipe_facts(Recipe.from_dict(content["recipe"])),
        "settings": _plain(content["settings"]),
        "sha256": sha256_of_file(path),
        "health": "whole, all finite" if finite else "NOT FINITE",
    }


def of_checkpoint(path: Path) -> Facts:
    """A checkpoint of a training run; its checksum is compared."""
    with open(path, "rb") as file:
        head = file.readline(len(HEAD) + 66)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not head.startswith(HEAD):
        raise ValueError(f"{path} is no checkpoint of this project")
    if head != HEAD + digest.encode() + b"\n":
        raise ValueError(f"{path} is damaged: its checksum does not hold; a resumed run skips it")
    step = path.stem.rpartition("-")[2]
    return {"what": "checkpoint", "step": int(step) if step.isdigit() else "", "sha256": digest,
            "health": "whole: its checksum holds"}  # fmt: skip


READERS: dict[str, Callable[[Path], Facts]] = {
    ".tar": file_facts.of_shard,
    ".parquet": file_facts.of_table,
    ".npz": file_facts.of_arrays,
    ".npy": file_facts.of_embeddings,
    ".tsv": file_facts.of_plan,
    ".captions": file_facts.of_caption_plan,
    ".txt": file_facts.of_words_or_order,
    ".csv": file_facts.of_rejected,
    ".json": of_json,
    ".jsonl": of_metrics,
    ".pt": of_model,
    ".checkpoint": of_checkpoint,
}


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def main(argv: list[str] | None = None) -> None:
    """Describe files."""
    parser = CommandLine(
        prog="python -m pipeline.tools.info",
        description="Any file of a results folder in, a few lines that say what it is out.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what to look at")
    args = parser.parse_args(argv)
    for path in args.files:
        facts = {name: value for name, value in describe(path).items() if value not in ("", None)}
        width = max(map(len, facts))
        lines = [f"{name.ljust(width)}  {value}\n" for name, value in facts.items()]
        sys.stdout.write("".join(lines) + ("\n" if path != args.files[-1] else ""))


if __name__ == "__main__":
    run(main)
