"""The text tower on distinct words beside fc1 on every word: time and memory.

    python -m tests.benchmarks.text_tower [--quick]

On the CPU, fp32, 8,192 captions of 20 words drawn by Zipf's law (1.2) from 66,250, word vectors of
300 numbers, hidden 2,048, embeddings of 512: the sizes of the reference text module.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import numpy as np
import torch

from tests.benchmarks.measure import begin, measure, table
from trainer.towers import TextTower, caption_words

CAPTIONS, LENGTH, WORDS, WORD_DIM, HIDDEN, DIM = 8192, 20, 66_250, 300, 2048, 512


def captions(count: int) -> torch.Tensor:
    """[N, L] token ids of `count` captions."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, WORDS + 1) ** 1.2
    ids = random.choice(WORDS, (count, LENGTH), p=weights / weights.sum()) + 1
    return torch.from_numpy(ids)


def every_word(tower: TextTower, ids_NL: torch.Tensor) -> torch.Tensor:
    """fc1 on every word, as it is usually written."""
    x_NLH = torch.relu(tower.fc1(tower.words(ids_NL)))
    return tower.fc2(torch.max(x_NLH, dim=1)[0])


def distinct_words(tower: TextTower, ids_NL: torch.Tensor) -> torch.Tensor:
    """This project's tower, with finding the distinct words counted in."""
    return tower(caption_words(ids_NL))


def forward_and_backward(forward, count: int):
    """Work for `measure`; the word vectors are frozen, as loaded ones usually are."""
    torch.manual_seed(0)
    tower, ids_NL = TextTower(WORDS, WORD_DIM, HIDDEN, DIM), captions(count)
    tower.words.weight.requires_grad_(False)
    forward(tower, ids_NL[:64]).sum().backward()

    def run() -> float:
        tower.zero_grad()
        value = forward(tower, ids_NL).square().mean()
        value.backward()
        return value.item()

    return run


def main() -> None:
    """Print the table."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    count = CAPTIONS // 16 if quick else CAPTIONS
    ways = {"fc1 on every word": every_word, "on distinct words": distinct_words}
    works = [partial(forward_and_backward, forward, count) for forward in ways.values()]
    rows = [["text tower", "value", "seconds", "GB", "time ratio", "memory ratio"]]
    found = measure(*works, repeats=1 if quick else 2)
    for name, row in zip(ways, found, strict=True):
        ratios = [row[key] / found[0][key] for key in ("seconds", "gigabytes")]
        value = f"{row['result']:.6f}"
        rows.append([name, value, row["seconds"], row["gigabytes"], *ratios])
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
