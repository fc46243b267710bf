"""Stage `embeddings`: every clip of a shard in the trained model's space, ready to be searched.

Reads   model.pt, the shard's bags and its tar
Writes  embeddings/{shard}.npy, float32 [clips, numbers], and embeddings/{shard}.parquet: each
        clip's video and span
By hand `python -m trainer.embeddings --help`
"""

from __future__ import annotations

from pathlib import Path

from pipeline.formats.command_line import CommandLine
from trainer.cli import run
from trainer.clip_embeddings import EmbeddingFiles, make_embeddings, open_model


def main(argv: list[str] | None = None) -> None:
    """Embed the clips of one shard."""
    parser = CommandLine(
        prog="python -m trainer.embeddings",
        description="A trained model and a shard in, the embeddings of all its clips out.",
    )
    parser.add_argument("--model", type=Path, required=True, help="train/model.pt")
    parser.add_argument("--bags", type=Path, required=True, help="bags/{shard}.npz")
    parser.add_argument("--tar", type=Path, required=True, help="shards/{shard}.tar")
    parser.add_argument("--output", type=Path, required=True, help="embeddings/{shard}.npy")
    parser.add_argument("--index", type=Path, required=True, help="embeddings/{shard}.parquet")
    args = parser.parse_args(argv)
    files = EmbeddingFiles(args.bags, args.tar, args.output, args.index)
    make_embeddings(open_model(args.model), files)


if __name__ == "__main__":
    run(main)
