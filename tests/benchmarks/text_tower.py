"""The text tower on distinct words beside fc1 on every word: time and memory.

    python -m tests.benchmarks.text_tower

On the CPU, fp32, 8,192 captions of 20 words drawn by Zipf's law (1.2) from 66,250, word vectors of
300 numbers, hidden 2,048, embeddings of 512: the sizes of the reference text module.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch

from tests.benchmarks.measure import measure, table
from trainer.towers import TextTower, caption_words

CAPTIONS, LENGTH, WORDS, WORD_DIM, HIDDEN, DIM = 8192, 20, 66_250, 300, 2048, 512


def captions() -> torch.Tensor:
    """[N, L] token ids."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, WORDS + 1) ** 1.2
    ids = random.choice(WORDS, (CAPTIONS, LENGTH), p=weights / weights.sum()) + 1
    return torch.from_numpy(ids)


def every_word(tower: TextTower, ids_NL: torch.Tensor) -> torch.Tensor:
    """fc1 on every word, as it is usually written."""
    x_NLH = torch.relu(tower.fc1(tower.words(ids_NL)))
    return tower.fc2(torch.max(x_NLH, dim=1)[0])


def distinct_words(tower: TextTower, ids_NL: torch.Tensor) -> torch.Tensor:
    """This project's tower, with finding the distinct words counted in."""
    return tower(caption_words(ids_NL))


def forward_and_backward(forward):
    """Work for `measure`; the word vectors are frozen, as loaded ones usually are."""
    torch.manual_seed(0)
    tower, ids_NL = TextTower(WORDS, WORD_DIM, HIDDEN, DIM), captions()
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
    rows = [["text tower", "value", "seconds", "GB", "time ratio", "memory ratio"]]
    base = None
    for name, forward in (("fc1 on every word", every_word), ("on distinct words", distinct_words)):
        found = measure(partial(forward_and_backward, forward), repeats=2)
        base = base or found
        ratios = [found[key] / base[key] for key in ("seconds", "gigabytes")]
        value = f"{found['result']:.6f}"
        rows.append([name, value, found["seconds"], found["gigabytes"], *ratios])
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
