"""What accelerators compute is fetched once a step; tested with tensors of the CPU that are taken for others."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observing import Seen, observing
from traincheck.sources.pending import as_if_elsewhere, fetches
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.facts import FactValue

STEPS = 10

PRINTED = ("random", "loader")
"""Kinds of readings whose values are fingerprints (of a state, of an order) or just numbers of what was there."""


class Model(nn.Module):
    """An embedding of which few rows have a gradient, normalisation with buffers, a part that is frozen and one that no
    batch is given to, and weights that are large enough for samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 64)
        self.body = nn.Sequential(nn.Linear(64, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 300))
        self.frozen = nn.Linear(300, 64).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(self.body(self.table(x))).softmax(-1))


def train(steps: int = STEPS) -> list[float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randint(0, 100, (8 * steps,)), torch.randint(0, 3, (8 * steps,)))
    losses = []
    for step, (x, y) in enumerate(DataLoader(samples, batch_size=8)):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if step != 5:  # one in which an update is missing
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def observed(demand: Demand, *, elsewhere: bool) -> tuple[Seen, list[float], list[int]]:
    """What was seen of a training, its losses, and how many transfers there had been when each window was cut."""
    transfers: list[int] = []
    with as_if_elsewhere() if elsewhere else nullcontext(), observing(demand) as seen:
        take = seen.windows.append
        seen.recorder._on_window = lambda window: (take(window), transfers.append(fetches.count))
        losses = train()
    assert seen.faults == []
    return seen, losses, transfers


def alike(window: Window) -> Window:
    """A window but for what may differ: fingerprints (which are computed in another way), the last digits of norms, and
    the numbers of events (more are set aside than are told)."""
    seqs: dict[int, int] = {}

    def number(seq: int) -> int:
        return seqs.setdefault(seq, len(seqs)) if seq >= 0 else seq

    def rounded(facts: tuple[tuple[str, FactValue], ...]) -> tuple[tuple[str, FactValue], ...]:
        return tuple((name, float(f"{value:.4g}") if isinstance(value, float) else value) for name, value in facts)

    places = [place for call in window.calls for place in (call.seq, call.end)]
    places += [one.seq for one in (*window.changes, *window.readings)]
    for place in sorted(places):
        number(place)
    calls = tuple(
        call._replace(
            seq=number(call.seq),
            end=number(call.end),
            parent=number(call.parent),
            thread=0,
            result=rounded(call.result),
            tensors=tuple(
                one._replace(fingerprint=one.fingerprint is None, facts=rounded(one.facts)) for one in call.tensors
            ),
        )
        for call in window.calls
    )
    changes = tuple(
        one._replace(seq=number(one.seq), call=number(one.call), fingerprint=None) for one in window.changes
    )
    readings = tuple(
        one._replace(seq=number(one.seq), call=number(one.call), value=0 if one.kind in PRINTED else one.value)
        for one in window.readings
    )
    return replace(window, calls=calls, changes=changes, readings=readings)


def test_the_same_is_seen_of_what_lies_elsewhere() -> None:
    here, losses, _ = observed(EVERYTHING, elsewhere=False)
    there, same_losses, _ = observed(EVERYTHING, elsewhere=True)
    assert same_losses == losses
    assert len(here.windows) == len(there.windows) > STEPS
    for one, other in zip(here.windows, there.windows, strict=True):
        one, other = alike(one), alike(other)
        for mine, theirs in zip(one.calls, other.calls, strict=True):
            assert theirs == mine
        for mine_changed, theirs_changed in zip(one.changes, other.changes, strict=True):
            assert theirs_changed == mine_changed
        assert other.readings == one.readings


def test_a_step_takes_one_transfer() -> None:
    seen, _, transfers = observed(EVERYTHING, elsewhere=True)
    counts = [
        after - before
        for window, before, after in zip(seen.windows[1:], transfers, transfers[1:], strict=False)
        if window.stage == TRAIN
    ]
    assert len(counts) >= STEPS - 1
    assert set(counts) == {1}
