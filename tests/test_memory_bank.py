"""The memory bank: a true queue, the same on all ranks, exact in the loss, kept in checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.ranks import run_ranks
from tests.synthetic_bags import train_settings
from trainer import distributed
from trainer.batch import Batch
from trainer.batch_parts import batch_of_clips
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.memory_bank import MemoryBank, Queue
from trainer.model import caption_words

NUM_CLIPS, BAG, DIM, STEPS = 6, 2, 4, 4
SETTINGS = {"bank_clips": 9, "bank_captions": 17, "embedding_dim": DIM}


def make_batch(step: int) -> Batch:
    """Clips of four videos with bags of own captions; clip 2 has an empty bag."""
    random = np.random.default_rng(step)
    num_captions = NUM_CLIPS * BAG
    bags = np.arange(num_captions).reshape(NUM_CLIPS, BAG)
    bags[2] = -1
    video_B = np.arange(NUM_CLIPS) // 2 + random.integers(0, 2)
    keys_N4 = np.zeros((num_captions, 4), np.int64)
    keys_N4[:, 0] = np.repeat(video_B, BAG)
    keys_N4[:, 3] = random.integers(1, 9, num_captions)
    keys_B3 = np.stack([video_B, np.zeros_like(video_B), np.zeros_like(video_B)], axis=1)
    return Batch(
        step=step,
        id_hash=step,
        clip_ids_B=torch.arange(NUM_CLIPS),
        caption_ids_N=torch.arange(num_captions),
        features_BTF=torch.from_numpy(random.normal(size=(NUM_CLIPS, 1, 5))),
        mask_BT=torch.ones(NUM_CLIPS, 1, dtype=torch.bool),
        words=caption_words(random.integers(1, 6, (num_captions, 3))),
        bag_idx_BA=torch.from_numpy(bags),
        clip_keys_B3=torch.from_numpy(keys_B3),
        caption_keys_N4=torch.from_numpy(keys_N4),
    )


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video, self.words = nn.Linear(5, DIM), nn.Embedding(6, DIM)
        self.log_temperature = nn.Parameter(torch.tensor(0.1))

    def forward(self, batch: Batch):
        words = self.words(batch.words.words_U)[batch.words.places_X]
        captions = words.view(len(batch.caption_ids_N), -1, DIM).sum(dim=1)
        return self.video(batch.features_BTF[:, 0]), captions, self.log_temperature.exp()


def bank_of(world: World, **changes) -> MemoryBank:
    bank = MemoryBank.of(train_settings(**(SETTINGS | changes)), world, BAG, on_cpu=False)
    for queue in (bank.clips, bank.captions):
        queue.embedding_MD = queue.embedding_MD.double()
    return bank


def train(world: World, changes: dict) -> dict:
    """Steps of SGD with the bank, on one rank's part of each batch."""
    torch.set_default_dtype(torch.float64)
    try:
        bank, model = bank_of(world, **changes), Towers()
        parallel = distributed.parallel(model, world)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        cut = [0, NUM_CLIPS] if world.size == 1 else [0, 2, NUM_CLIPS]
        for number in range(STEPS):
            whole = make_batch(number)
            part = batch_of_clips(whole, slice(*cut[world.rank :][:2])) if world.size > 1 else whole
            if world.size == 1:  # bags that are nobody's leave their captions out on ranks
                part = batch_of_clips(whole, slice(0, NUM_CLIPS))
            clips, captions, temperature = parallel(part)
            past = bank.past(number, part, clips.detach(), captions.detach())
            own = [len(part.clip_ids_B), len(part.caption_ids_N), part.num_valid]
            counts = world.gather_integers(own)
            loss = mil_nce_loss(
                clips, captions, part.bag_idx_BA, temperature=temperature, past=past, world=world,
                tile=11,
            )  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bank.push(part, clips.detach(), captions.detach(), counts)
            losses.append(loss.item())
    finally:
        torch.set_default_dtype(torch.float32)
    return {"losses": losses, "state": model.state_dict(), "bank": bank.state()}


CASES = {
    "all": {},
    "random": {"bank_draw": "random", "bank_drawn": 4},
    "hardest": {"bank_draw": "hardest", "bank_drawn": 4},
    "captions alone": {"bank_clips": 0},
    "clips alone": {"bank_captions": 0, "exclude_same_text": False},
    "warm-up": {"bank_warmup_steps": 2},
}


def all_cases(world: World, _: object) -> dict:
    return {name: train(world, changes) for name, changes in CASES.items()}


def test_two_ranks_hold_the_same_bank_and_equal_one_process(tmp_path):
    found = run_ranks(all_cases, 2, None, tmp_path, seconds=180)
    for name, alone in all_cases(World.alone(), None).items():
        for rank in found:
            assert np.allclose(rank[name]["losses"], alone["losses"], rtol=0, atol=1e-12), name
            for parameter, value in alone["state"].items():
                assert (rank[name]["state"][parameter] - value).abs().max() <= 1e-12, name
            for kind in ("clips", "captions"):
                ours, theirs = rank[name]["bank"][kind], alone["bank"][kind]
                assert torch.equal(ours["video"], theirs["video"]), name
                assert torch.equal(ours["hash"], theirs["hash"]), name
                assert torch.allclose(ours["embedding"], theirs["embedding"], rtol=0, atol=1e-12)
                assert (ours["next"], ours["filled"]) == (theirs["next"], theirs["filled"])


def literal_loss(batch: Batch, clips, captions, temperature, history, settings):
    """The formula with the bank's entries written out: (clips, captions) of earlier steps."""
    past_clips = [e for old in history for e in old["clips"]][-settings.bank_clips :]
    past_captions = [e for old in history for e in old["captions"]][-settings.bank_captions :]
    bags = [[k for k in bag if k >= 0] for bag in batch.bag_idx_BA.tolist()]
    video_B, keys_N = batch.clip_keys_B3[:, 0].tolist(), batch.caption_keys_N4.tolist()
    terms = []
    for i, bag in enumerate(bags):
        if not bag:
            continue
        texts = {keys_N[k][3] for k in bag}
        rest = [clips[i] @ captions[k] for k in range(len(captions)) if k not in bag]
        rest += [clips[j] @ captions[k] for k in bag for j in range(len(clips)) if k not in bags[j]]
        rest += [
            clips[i] @ entry for entry, video, text in past_captions
            if video != video_B[i] and text not in texts
        ]  # fmt: skip
        rest += [
            entry @ captions[k] for k in bag for entry, video, its_texts in past_clips
            if video != keys_N[k][0] and keys_N[k][3] not in its_texts
        ]  # fmt: skip
        positive = torch.stack([clips[i] @ captions[k] for k in bag]) / temperature
        everything = torch.cat([positive, torch.stack(rest) / temperature])
        terms.append(everything.logsumexp(dim=0) - positive.logsumexp(dim=0))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_loss_with_the_bank_equals_a_literal_loop(size):
    """Also where similarities are too large for their exp."""
    torch.set_default_dtype(torch.float64)
    try:
        bank, history = bank_of(World.alone()), []
        model = Towers()
        for number in range(STEPS):
            batch = batch_of_clips(make_batch(number), slice(0, NUM_CLIPS))
            clips, captions, temperature = model(batch)
            clips, captions = clips * size, captions * size
            past = bank.past(number, batch, clips.detach(), captions.detach())
            assert (past is None) == (number == 0)
            loss = mil_nce_loss(
                clips, captions, batch.bag_idx_BA, temperature=temperature, past=past
            )
            expected = literal_loss(batch, clips, captions, temperature, history, bank.settings)
            parameters = list(model.parameters())
            pairs = zip(
                [loss, *torch.autograd.grad(loss, parameters, retain_graph=True)],
                [expected, *torch.autograd.grad(expected, parameters, retain_graph=True)],
                strict=True,
            )
            for a, b in pairs:
                assert (a - b).abs().max() <= 1e-11 * size * size
            counts = np.array([[len(clips), len(captions), batch.num_valid]])
            bank.push(batch, clips.detach(), captions.detach(), counts)
            hash_N = batch.caption_keys_N4[:, 3].tolist()
            video_N = batch.caption_keys_N4[:, 0].tolist()
            texts = [{hash_N[k] for k in bag if k >= 0} for bag in batch.bag_idx_BA.tolist()]
            history.append({
                "clips": list(zip(
                    clips.detach(), batch.clip_keys_B3[:, 0].tolist(), texts, strict=True)),
                "captions": list(zip(captions.detach(), video_N, hash_N, strict=True)),
            })  # fmt: skip
    finally:
        torch.set_default_dtype(torch.float32)


def entries(queue: Queue) -> list[float]:
    """Oldest first."""
    order = (queue.next - queue.filled + np.arange(queue.filled)) % queue.size
    assert np.array_equal(queue.embedding_MD[order, 0].numpy(), queue.video_M[order])
    return queue.embedding_MD[order, 0].tolist()


@pytest.mark.parametrize("pushes", [[4, 4, 4, 4], [3, 10, 1], [25, 4], [0, 10, 0, 3], [9, 1, 1]])
def test_the_oldest_entries_are_overwritten_first(pushes):
    queue = Queue.empty(10, 2, 1, torch.device("cpu"), pinned=False)
    expected, value = [], 0
    for count in pushes:
        rows = np.arange(value, value + count)
        value += count
        expected = (expected + rows.tolist())[-10:]
        queue.push(torch.from_numpy(rows)[:, None].expand(-1, 2).float(), rows, rows[:, None])
        assert entries(queue) == expected


@pytest.mark.parametrize("pinned", [True, False])
def test_rows_of_a_pinned_bank_are_chosen_into_pinned_memory(monkeypatch, pinned):
    """Without CUDA nothing can be pinned: what is asked for is watched."""
    asked, new_empty = [], torch.Tensor.new_empty

    def watched(own: torch.Tensor, *size: int, pin_memory: bool) -> torch.Tensor:
        asked.append(pin_memory)
        return new_empty(own, *size)

    bank = bank_of(World.alone())
    bank.captions.embedding_MD.normal_()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: pinned)
    monkeypatch.setattr(torch.Tensor, "new_empty", watched)
    found = bank._rows(bank.captions, np.array([1, 4]))
    assert asked == [pinned]
    expected = bank.captions.embedding_MD[[1, 4]]
    assert torch.equal(found, expected)
    bank.captions.embedding_MD.zero_()
    assert torch.equal(found, expected)


def test_draws_depend_on_the_step_and_hardest_are_the_most_similar():
    torch.set_default_dtype(torch.float64)
    try:
        bank = bank_of(World.alone(), bank_draw="random", bank_drawn=3)
        batch = make_batch(0)
        clips = torch.randn(NUM_CLIPS, DIM)
        captions = torch.randn(NUM_CLIPS * BAG, DIM)
        bank.push(batch, clips, captions, np.array([[len(clips), len(captions), 5]]))
        drawn = [bank.past(step, batch, clips, captions).captions_MD for step in (1, 1, 2)]
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
        assert drawn[0].shape == (3, DIM)
        hardest = bank_of(World.alone(), bank_draw="hardest", bank_drawn=3)
        hardest.push(batch, clips, captions, np.array([[len(clips), len(captions), 5]]))
        found = hardest.past(1, batch, clips, captions).captions_MD
        best = (captions @ clips.T).amax(dim=1).topk(3).indices.sort().values
        assert torch.equal(found, captions[best])
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_bank_round_trips_and_is_not_there_unless_asked():
    assert MemoryBank.of(train_settings(), World.alone(), BAG, on_cpu=False) is None
    bank, other = bank_of(World.alone()), bank_of(World.alone())
    batch = make_batch(0)
    clips, captions = torch.randn(NUM_CLIPS, DIM), torch.randn(NUM_CLIPS * BAG, DIM)
    bank.push(batch, clips, captions, np.array([[len(clips), len(captions), 5]]))
    other.restore(bank.state())
    for a, b in zip(bank.state().values(), other.state().values(), strict=True):
        assert all(torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key])) for key in a)
