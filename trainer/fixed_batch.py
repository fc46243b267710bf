"""Digests of one small batch: where two runs that should be equal begin to differ.

The batch is the first videos of the first step, through the weights of the start, on this device,
alone: it does not depend on the ranks, nor on where a run goes on.
"""

from __future__ import annotations

import copy
import hashlib

import numpy as np
import torch

from trainer.batch import collate
from trainer.batch_parts import tower_input
from trainer.data import StepData, id_hash
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.model import TwoTowers
from trainer.optimize import seed_step
from trainer.preflight import global_exclusion

FIXED_VIDEOS = 8


def fixed_batch(model: TwoTowers, data: StepData, device: torch.device) -> dict:
    """Shapes and digests of one small batch through the given weights; changes nothing."""
    epoch, videos = data.visits(0)
    clips_B = data.clips(epoch, videos[:FIXED_VIDEOS])
    batch = collate(data.index, clips_B, 0, id_hash(0, videos))
    # One rank is alone with this: a batch norm over all ranks would wait for the others.
    settings, model = data.settings, copy.deepcopy(model).eval()
    seed_step(settings.seed, 0, 0)
    features_BTF, mask_BT, words = tower_input(batch, None, device)
    found = {
        "shapes": {
            "features": list(features_BTF.shape),
            "captions": len(batch.caption_ids_N),
            "words": len(words.words_U),
            "bags": list(batch.bag_idx_BA.shape),
        },
        "inputs": digest([features_BTF, mask_BT, *words, batch.bag_idx_BA]),
        "weights": digest(list(model.state_dict().values())),
    }
    clips_BD, captions_ND, temperature = model(features_BTF, mask_BT, words)
    found["embeddings"] = digest([clips_BD, captions_ND])
    counts_W3 = np.array([[len(clips_BD), len(captions_ND), batch.num_valid]])
    if not all(torch.isfinite(rows).all() for rows in (clips_BD, captions_ND)):
        return found | {"fault": "embeddings are not finite"}
    loss = mil_nce_loss(
        clips_BD, captions_ND, batch.bag_idx_BA, temperature=temperature,
        excluded_E2=global_exclusion(settings, batch, counts_W3, World.alone(device.type)),
        symmetric=settings.symmetric, positive_weight=settings.positive_weight,
        world=World.alone(device.type),
    )  # fmt: skip
    loss.backward()
    found["loss"] = digest([loss])
    found["gradients"] = digest([p.grad for p in model.parameters() if p.grad is not None])
    return found


def digest(tensors: list[torch.Tensor]) -> dict:
    """The sha256 of tensors' bytes, and their length as one vector, which shows rounding apart."""
    sha, total = hashlib.sha256(), 0.0
    for tensor in tensors:
        value = tensor.detach().cpu()
        sha.update(value.numpy().tobytes())
        total += float(value.double().square().sum())
    return {"sha256": sha.hexdigest(), "length": repr(total**0.5)}
