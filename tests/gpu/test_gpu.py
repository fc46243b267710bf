"""The loss and the towers on a GPU, or on the pretended one where there is none.

`tests/gpu/pretend.py` says what that shows and what not; `real_gpu` marks what needs a real one.
`python -m tests.gpu.run` runs these and the loss's figures there.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeline.formats.files import write_json
from tests.synthetic_bags import make_results, train_settings
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.model import build_model
from trainer.towers import TextTower, caption_words
from trainer.train import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("exact_multiplications"),
]


def case(dtype: torch.dtype, device: str):
    """Embeddings of 300 clips and 1,500 captions, bags with padding, excluded pairs."""
    random = np.random.default_rng(0)
    v = torch.from_numpy(random.normal(size=(300, 64))).to(device, dtype).requires_grad_()
    t = torch.from_numpy(random.normal(size=(1500, 64))).to(device, dtype).requires_grad_()
    bags = np.stack([random.permutation(1500)[:6] for _ in range(300)])
    bags[random.random(bags.shape) < 0.3] = -1
    pairs = np.stack([random.integers(0, 300, 500), random.integers(0, 1500, 500)], axis=1)
    pairs = np.array(sorted({(i, k) for i, k in pairs.tolist() if k not in bags[i]}))
    return v, t, torch.from_numpy(bags), pairs


def loss_and_gradients(dtype: torch.dtype, device: str, **changes) -> list[torch.Tensor]:
    v, t, bags, pairs = case(dtype, device)
    loss = mil_nce_loss(
        v, t, bags, temperature=0.2, excluded_E2=pairs, normalize=True, tile=10_000, **changes
    )
    return [x.detach().cpu().double() for x in (loss, *torch.autograd.grad(loss, (v, t)))]


@pytest.mark.parametrize("largest", [None, 5.1])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
)
def test_the_loss_equals_the_cpus_in_float64(dtype, tolerance, largest):
    expected = loss_and_gradients(torch.float64, "cpu")
    found = loss_and_gradients(dtype, "cuda", largest=largest)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= tolerance * b.norm()


def test_the_text_tower_equals_fc1_on_every_word_also_in_bf16():
    """`embedding_bag(mode="max")` on the GPU, below an fc1 under autocast."""
    torch.manual_seed(0)
    tower = TextTower(50, 12, 32, 8).cuda()
    ids = torch.randint(1, 51, (40, 6))
    words = caption_words(ids)
    words = type(words)(*(value.cuda() for value in words))
    for enabled, tolerance in ((False, 1e-5), (True, 3e-2)):
        results = []
        for plain in (False, True):
            tower.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
                if plain:
                    hidden = functional.relu(tower.fc1(tower.words(ids.cuda()))).amax(dim=1)
                    out = tower.fc2(hidden)
                else:
                    out = tower(words)
            out.float().square().sum().backward()
            results.append([out.float(), *(p.grad.clone() for p in tower.parameters())])
        for a, b in zip(*results, strict=True):
            assert (a - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("learn", [False, True])
def test_a_step_waits_for_the_gpu_only_where_it_reads_the_norm(learn):
    settings = train_settings(learn_temperature=learn)
    model = build_model(settings, feature_dim=12, num_words=20).cuda()
    features, mask = torch.randn(6, 2, 12).cuda(), torch.ones(6, 2, dtype=torch.bool).cuda()
    ids = np.random.default_rng(0).integers(1, 21, (12, 4))
    words = caption_words(ids)
    words = type(words)(*(value.cuda() for value in words))
    bags = torch.arange(12).view(6, 2)
    world = World(rank=0, size=1, device=torch.device("cuda"), cpu_group=None)

    def step() -> torch.Tensor:
        clips, captions, temperature = model(features, mask, words)
        loss = mil_nce_loss(
            clips, captions, bags, temperature=temperature, world=world, largest=11.0
        )
        loss.backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 5.0)

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        norm = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(norm)


def test_sync_batch_norm_trains(tmp_path):
    results = make_results(tmp_path)
    settings = train_settings(norm="sync_batch", precision="bf16", max_steps=3)
    write_json(tmp_path / "settings/train.json", asdict(settings))
    main(results.train_arguments(backend="nccl"))


@pytest.mark.usefixtures("real_gpu")
def test_the_loss_needs_little_memory():
    v = functional.normalize(torch.randn(4096, 512, device="cuda"), dim=1).requires_grad_()
    t = functional.normalize(torch.randn(65536, 512, device="cuda"), dim=1).requires_grad_()
    bags = torch.arange(65536).view(4096, 16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    mil_nce_loss(v, t, bags, temperature=0.07, largest=15.0).backward()
    used = torch.cuda.max_memory_allocated() - before
    assert used < 0.45e9  # the matrix alone is 1.07e9, the reference form eight times that
