"""Memory and time of the loss beside the reference form, a familiar loop, and a plain matmul.

    python -m tests.benchmarks.loss [--quick] [--clips 4096] [--sizes 512 1024 ...]

All on the CPU, fp32, bags of 16 own captions, 512 numbers an embedding, cosine with a temperature
of 0.07. Each piece of work runs in a process of its own, whose memory is watched (`measure`).
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from tests.benchmarks.measure import begin, measure, table
from trainer.loss import mil_nce_loss

BAG, DIM, TEMPERATURE = 16, 512, 0.07


def inputs(num_clips: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips [B, D] and captions [16 B, D] of length 1; a bag is the clip's own 16 captions."""
    torch.manual_seed(seed)
    v = functional.normalize(torch.randn(num_clips, DIM), dim=1).requires_grad_()
    t = functional.normalize(torch.randn(num_clips * BAG, DIM), dim=1).requires_grad_()
    return v, t


def reference(v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The reference MIL-NCE loss as users write it: whole matrix, positives in both sums."""
    x = torch.matmul(v / TEMPERATURE, t.t()).view(len(v), len(v), -1)
    nominator = torch.logsumexp(x[torch.arange(len(v)), torch.arange(len(v))], dim=1)
    denominator = torch.cat((x, x.permute(1, 0, 2)), dim=1).view(len(v), -1)
    return torch.mean(torch.logsumexp(denominator, dim=1) - nominator)


def chunked(v: torch.Tensor, t: torch.Tensor, rows: int = 64) -> torch.Tensor:
    """The familiar way to save memory, a loop with logaddexp; autograd keeps every row."""
    sums_N = torch.full((len(t),), -torch.inf)
    rows_B, positive_B = [], []
    for start in range(0, len(v), rows):
        s = v[start : start + rows] @ t.T / TEMPERATURE
        own = torch.arange(start, start + len(s))
        positive_B.append(s.view(len(s), -1, BAG)[torch.arange(len(s)), own].logsumexp(dim=1))
        rows_B.append(s.logsumexp(dim=1))
        sums_N = torch.logaddexp(sums_N, s.logsumexp(dim=0))
    columns_B = sums_N.view(len(v), BAG).logsumexp(dim=1)
    return (torch.logaddexp(torch.cat(rows_B), columns_B) - torch.cat(positive_B)).mean()


def tiled(v: torch.Tensor, t: torch.Tensor, **changes) -> torch.Tensor:
    """This project's loss, with the reference's weight of the positives."""
    bags = torch.arange(len(t)).view(len(v), BAG)
    return mil_nce_loss(v, t, bags, temperature=TEMPERATURE, positive_weight=2, **changes)


def forward_and_backward(loss, num_clips: int):
    """Work for `measure`."""
    v, t = inputs(num_clips)
    loss(v[:8], t[: 8 * BAG]).backward()
    v.grad = t.grad = None  # the gradients count as memory of the run

    def run() -> float:
        v.grad = t.grad = None
        value = loss(v, t)
        value.backward()
        return value.item()

    return run


def four_matmuls(num_clips: int, cut: int = 1024):
    """Work: the multiplications of the tiled loss (forward, again, two gradients) alone."""
    v, t = (rows.detach() for rows in inputs(num_clips))
    out = torch.empty(cut, cut)

    def run() -> None:
        for _ in range(4):
            for i in range(0, len(v), cut):
                for k in range(0, len(t), cut):
                    a, b = v[i : i + cut], t[k : k + cut]
                    torch.mm(a, b.T, out=out[: len(a), : len(b)])

    return run


def compare(num_clips: int) -> str:
    """The tiled loss against the reference, the loop and bare multiplications."""
    forms = {
        "reference, whole matrix": reference,
        "loop over rows with logaddexp": chunked,
        "tiled": tiled,
    }
    found = measure(*(partial(forward_and_backward, form, num_clips) for form in forms.values()))
    base = found[0]
    rows = [["form", "loss", "seconds", "GB", "time ratio", "memory ratio"]]
    for name, row in zip(forms, found, strict=True):
        rows.append([
            name, f"{row['result']:.6f}", row["seconds"], row["gigabytes"],
            row["seconds"] / base["seconds"], row["gigabytes"] / base["gigabytes"],
        ])  # fmt: skip
    few = min(num_clips, 2048)
    bare, whole = measure(
        partial(four_matmuls, few), partial(forward_and_backward, tiled, few), repeats=5
    )
    share = bare["seconds"] / whole["seconds"]
    return table(rows) + f"\nThe tiled form runs at {share:.2f} of the rate of its bare products.\n"


def sizes(counts: list[int]) -> str:
    """Memory grows with the batch, not with its square."""
    rows = [["clips", "captions", "whole matrix would be GB", "seconds", "GB beside the inputs"]]
    found = measure(*(partial(forward_and_backward, tiled, count) for count in counts))
    for count, row in zip(counts, found, strict=True):
        rows.append([
            count, count * BAG, count * count * BAG * 4 / 1e9, row["seconds"], row["gigabytes"]
        ])  # fmt: skip
    return table(rows)


def mistakes() -> str:
    """Cosine of the gradient of well-known mistakes to the true one; 4 ranks of 8 clips, bags of 4.

    Cosines over both embeddings, in float64; bags have two to four captions.
    """
    random, ranks, each, bag = np.random.default_rng(0), 4, 8, 4
    v = torch.from_numpy(random.normal(size=(ranks * each, 16))).requires_grad_()
    t = torch.from_numpy(random.normal(size=(ranks * each * bag, 16))).requires_grad_()
    bags = torch.arange(len(t)).view(len(v), bag)
    bags[torch.from_numpy(random.random(bags.shape) < 0.4) & (torch.arange(bag) > 1)] = -1

    def gradient(loss) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, (v, t))])

    def part(clips: slice, v_, t_) -> torch.Tensor:
        """The loss of some clips against whatever is passed as everything."""
        s = functional.normalize(v_, dim=1) @ functional.normalize(t_, dim=1).T / 0.2
        own = torch.zeros(len(v_), len(t_), dtype=torch.bool)
        for i, row in enumerate(bags.tolist()):
            own[i, [k for k in row if k >= 0]] = True
        used = own.any(dim=0)
        s = s.masked_fill(~used, -torch.inf)
        positive = s.masked_fill(~own, -torch.inf).logsumexp(dim=1)
        columns = s.logsumexp(dim=0)
        c = (columns - (torch.where(own, s, -torch.inf)).logsumexp(dim=0)).new_zeros(len(v_))
        for i, row in enumerate(bags.tolist()):
            mine = [k for k in row if k >= 0]
            others = torch.tensor([j for j in range(len(v_)) if j != i])
            c[i] = s[others][:, mine].logsumexp(dim=(0, 1))
        return (torch.logaddexp(s.logsumexp(dim=1), c) - positive)[clips].sum() / len(v_)

    unit = {"temperature": 0.2, "normalize": True}
    every = [slice(r * each, (r + 1) * each) for r in range(ranks)]
    used = [bags[e][bags[e] >= 0] for e in every]

    def local(e: slice, columns: torch.Tensor) -> torch.Tensor:
        place = {k: n for n, k in enumerate(columns.tolist())}
        own = torch.tensor([[place.get(k, -1) for k in row] for row in bags[e].tolist()])
        return mil_nce_loss(v[e], t[columns], own, **unit) / ranks

    def without_gradient(e: slice) -> torch.Tensor:
        mine = torch.zeros(len(v), 1, dtype=torch.float64)
        mine[e] = 1
        own = torch.zeros(len(t), 1, dtype=torch.float64)
        own[e.start * bag : e.stop * bag] = 1
        return part(e, v * mine + v.detach() * (1 - mine), t * own + t.detach() * (1 - own))

    true = gradient(sum(part(e, v, t) for e in every))
    repeated = torch.where(bags < 0, bags[:, :1], bags)
    fresh = t[repeated.flatten()]
    forms = {
        "every rank against its own negatives only": sum(
            local(e, u) for e, u in zip(every, used, strict=True)
        ),
        "gathered without gradient": sum(without_gradient(e) for e in every),
        "plain accumulation, 8 parts of 4 clips": sum(
            local(slice(i, i + 4), bags[i : i + 4][bags[i : i + 4] >= 0]) / 2
            for i in range(0, len(v), 4)
        ),
        "padding by repeating a caption": mil_nce_loss(
            v, fresh, torch.arange(len(fresh)).view(len(v), bag), **unit
        ),
    }
    rows = [["mistake", "cosine to the true gradient", "length ratio"]]
    for name, loss in forms.items():
        found = gradient(loss)
        cosine = functional.cosine_similarity(found, true, dim=0).item()
        rows.append([name, f"{cosine:.3f}", f"{(found.norm() / true.norm()).item():.3f}"])
    return table(rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clips", type=int, default=4096)
    usual = [512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--sizes", type=int, nargs="*", default=usual)
    arguments = begin(parser)
    quick = arguments.quick
    sys.stdout.write(compare(128 if quick else arguments.clips) + "\n")
    sys.stdout.write(sizes([64, 128] if quick else arguments.sizes) + "\n")
    sys.stdout.write(mistakes())


if __name__ == "__main__":
    main()
