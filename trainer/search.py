"""Search: a text finds the clips that show it, or a moment of a video the captions that tell of it.

Reads   model.pt and the results folder: plan/, bags/, captions/, shards/, vocabulary.txt, and
        embeddings/, whose missing or stale files it makes
Writes  a table or JSON to the terminal; with --output, the JSON for `pipeline.report --search`
By hand `python -m trainer.search --model results/train/model.pt "pour the batter" -k 10`
        `python -m trainer.search --model results/train/model.pt --video ID --at 12.5`

Letters: M captions of a shard, D numbers of an embedding.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.bags import Bags, read_bags
from pipeline.formats.command_line import CommandLine
from pipeline.formats.embeddings import ClipEmbeddings
from pipeline.formats.files import write_json
from pipeline.formats.names import again
from pipeline.formats.tags import SEARCH
from pipeline.formats.tokenizer import encode_caption, tokenize
from trainer.cli import run
from trainer.clip_embeddings import OpenModel, embedding_files, fresh_embeddings, open_model
from trainer.nearest import ROWS_AT_ONCE, Scored, best_moments, best_rows, merge_best
from trainer.search_results import Library, open_library, table

logger = logging.getLogger(__name__)


def embed_query(opened: OpenModel, text: str) -> tuple[np.ndarray, list[str]]:
    """A text's embedding [D], and its words that the model does not know.

    Raises:
        ValueError: there is no text, or no word of it is known (they are named).
    """
    words = tokenize(text)
    if not words:
        raise ValueError(f"the query {text!r} holds no word: say what to look for")
    ids = {word: number for number, word in enumerate(opened.content["vocabulary"], start=1)}
    unknown = list(dict.fromkeys(word for word in words if word not in ids))
    tokens = encode_caption(text, ids, opened.content["max_caption_words"])
    if not tokens:
        raise ValueError(
            f"the model knows none of the query's words ({', '.join(unknown)}): its {len(ids)}"
            " words are in vocabulary.txt"
        )
    return opened.model.embed_captions(torch.tensor([tokens]))[0].numpy(), unknown


def find_clips(
    opened: OpenModel, library: Library, text: str, k: int, *, distinct: bool = False
) -> dict:
    """The k clips nearest to a text; `distinct` as in `best_moments`.

    Raises:
        ValueError: as `embed_query`, or there are fewer clips than k.
    """
    query_D, unknown = embed_query(opened, text)
    shards = [
        fresh_embeddings(opened, embedding_files(library.results, name)) for name in library.names
    ]
    total = sum(len(shard.video_ids) for shard in shards)
    check_k(k, total, "clips")
    if distinct:
        best = best_moments(query_D, shards, k)
    else:
        best = best_rows(query_D, [shard.vectors_CD for shard in shards], k)
    hits: list[dict] = []
    for one in best:
        shard, row = shards[one.place[0]], one.place[1]
        span = shard.video_ids[row], shard.starts[row], shard.ends[row]
        clip = library.clip(library.names[one.place[0]], *span)
        hits.append({"rank": len(hits) + 1, "score": round(one.score, 6), **clip})
    return {
        "kind": "text",
        "query": text,
        "unknown_words": unknown,
        "searched": total,
        "hits": hits,
    }


def find_captions(opened: OpenModel, library: Library, video_id: str, at: float, k: int) -> dict:
    """The k captions nearest to the clip of a video at a moment; equal texts count once.

    Raises:
        ValueError: no clip of the video covers that moment, or there are fewer captions than k.
    """
    name = library.shard_of(video_id)
    shard = fresh_embeddings(opened, embedding_files(library.results, name))
    row = clip_at(shard, video_id, at)
    query_D = np.asarray(shard.vectors_CD[row])
    best: list[Scored] = []
    total = 0
    for number, other in enumerate(library.names):
        bags = read_bags(library.results / f"bags/{other}.npz")
        total += bags.num_captions
        for found in score_captions(opened, bags, number, query_D, k):
            best = merge_best(best, found, k)
    check_k(k, total, "captions")
    hits = [
        {"rank": rank, "score": round(one.score, 6), **library.caption(*one.place)}
        for rank, one in enumerate(best, start=1)
    ]
    clip = library.clip(name, video_id, shard.starts[row], shard.ends[row])
    return {"kind": "clip", "clip": clip, "at": at, "searched": total, "hits": hits}


def clip_at(shard: ClipEmbeddings, video_id: str, at: float) -> int:
    """The row of the video's clip around `at` whose middle is nearest."""
    rows = [row for row, found in enumerate(shard.video_ids) if found == video_id]
    middle = {row: abs((shard.starts[row] + shard.ends[row]) / 2 - at) for row in rows}
    inside = [row for row in rows if shard.starts[row] <= at < shard.ends[row]]
    if not inside:
        if not rows:
            raise ValueError(f"the video {video_id!r} has no clip: rejected, or without captions")
        near = min(rows, key=middle.__getitem__)
        raise ValueError(
            f"no clip of {video_id!r} covers {at:g} s; the nearest is"
            f" {shard.starts[near]:g} to {shard.ends[near]:g} s"
        )
    return min(inside, key=middle.__getitem__)


def score_captions(
    opened: OpenModel, bags: Bags, shard: int, query_D: np.ndarray, k: int
) -> Iterator[list[Scored]]:
    """The best of each block of a shard's captions; captions with equal words are embedded once."""
    _, distinct = np.unique(bags.cap_hash, return_index=True)
    for first in range(0, len(distinct), ROWS_AT_ONCE // 16):
        rows = np.sort(distinct)[first : first + ROWS_AT_ONCE // 16]
        ids_NL = torch.from_numpy(bags.cap_ids[rows].astype(np.int64))
        scores_N = opened.model.embed_captions(ids_NL).numpy() @ query_D
        order = np.argsort(-scores_N, kind="stable")[:k]
        yield [
            Scored(float(scores_N[i]), int(bags.cap_hash[rows[i]]), (shard, int(rows[i])))
            for i in order
        ]


def check_k(k: int, total: int, what: str) -> None:
    """Refuse to promise more than there is."""
    if not 1 <= k <= total:
        raise ValueError(f"-k is {k}, but there are {total} {what}: allowed: 1 to {total}")


def check_vocabulary(opened: OpenModel, library: Library) -> None:
    """Refuse bags whose token ids mean other words to the model."""
    words = opened.content["vocabulary"]
    if words != list(library.vocabulary):
        raise ValueError(
            f"the model was trained with another vocabulary ({len(words)} words) than"
            f" {library.results}/vocabulary.txt ({len(library.vocabulary)} words): {again('train')}"
        )


def search(args: argparse.Namespace) -> dict:
    """One query in either direction."""
    if (args.query is None) == (args.video is None) or (args.video and args.at is None):
        raise ValueError("give a text to look for, or --video and --at to look from")
    opened = open_model(args.model)
    library = open_library(args.results or args.model.parent.parent)
    check_vocabulary(opened, library)
    if args.query is not None:
        found = find_clips(opened, library, args.query, args.k, distinct=args.distinct)
    else:
        found = find_captions(opened, library, args.video, args.at, args.k)
    model = {"sha256": opened.sha256, "step": opened.content["step"]}
    return {"format": SEARCH, "k": args.k, "model": model, **found}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m trainer.search",
        description="A text in, the clips that show it out; or a moment in, its captions out.",
    )
    parser.add_argument("query", nargs="?", help="what to look for")
    parser.add_argument("--model", type=Path, required=True, help="train/model.pt")
    parser.add_argument("--results", type=Path, help="results folder; default: the model's own")
    parser.add_argument("--video", help="look from a clip of this video")
    parser.add_argument("--at", type=float, help="the moment in it, in seconds")
    parser.add_argument("-k", type=int, default=10, help="how many to find")
    parser.add_argument(
        "--distinct", action="store_true", help="leave out clips that overlap a better one by half"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Search once."""
    args = _arguments(argv)
    found = search(args)
    if found.get("unknown_words"):
        logger.warning("words that the model does not know: %s", ", ".join(found["unknown_words"]))
    if args.output:
        write_json(args.output, found)
    text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    sys.stdout.write(text if args.json else table(found))


if __name__ == "__main__":
    run(main)
