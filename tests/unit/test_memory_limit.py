"""The state of relations and caches does not grow with the number of steps."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from loops import loader
from observed_process import observing
from traincheck import plugins
from traincheck.checking import memory_limit
from traincheck.checking.engine import Engine
from traincheck.checking.memory_limit import MemoryLimit, entries
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.learn import tally_windows
from traincheck.inference.tally import Tally
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.events import Window

RELATIONS = plugins.load("traincheck.relations")


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    model.train()
    for (x,) in loader(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        loss.item()
    model.eval()
    with torch.no_grad():
        for (x,) in loader(1):
            model(x).mean().item()
    model.load_state_dict(model.state_dict())


def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)


@functools.cache
def steady() -> list[Window]:
    """One model over many epochs, with rates, norms and losses that are new in each step."""
    torch.manual_seed(0)
    with observing() as seen:
        trained, kept = build(), loader(4)
        for _ in range(24):
            epoch(*trained)
        del kept
    assert seen.faults == []
    return seen.windows


@functools.cache
def restless() -> list[Window]:
    """A new model and a new optimizer in each epoch."""
    torch.manual_seed(0)
    with observing() as seen:
        for _ in range(40):
            epoch(*build())
    assert seen.faults == []
    return seen.windows


@pytest.mark.parametrize("name", RELATIONS)
def test_relation_state_does_not_grow_with_steps(name: str) -> None:
    relation = RELATIONS[name]()
    windows, sizes = steady(), []
    for number, window in enumerate(windows):
        for _ in relation.occasions(window):
            pass
        if number in (len(windows) // 4, len(windows) - 1):
            sizes.append(entries(relation))
    # Loaders are made anew in each epoch: one name each, see the next test.
    assert sizes[1] - sizes[0] <= 3 * 24, f"{name} remembers {sizes} things"


@pytest.mark.parametrize("name", RELATIONS)
def test_names_without_end_are_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "EVERY", 20)
    monkeypatch.setattr(memory_limit, "PER_WINDOW", 10**6)
    monkeypatch.setattr(memory_limit, "LEAST", 200)
    monkeypatch.setattr(memory_limit, "TIMES", 2)
    bare, bounded = RELATIONS[name](), RELATIONS[name]()
    memory, sizes = MemoryLimit(bounded), []
    for window in restless():
        for _ in bare.occasions(window):
            pass
        for shown in memory.with_gaps([window]):
            for _ in bounded.occasions(shown):
                pass
        sizes.append(entries(bounded))
    half = len(sizes) // 2
    assert max(sizes[half:]) <= 1.2 * max(sizes[:half]) + 20
    if name == "APISequence":
        assert entries(bare) > 2 * max(sizes), "there is something to forget"


def test_dropped_state_causes_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "EVERY", 7)
    tally = Tally("restless", "restless")
    tally_windows(restless(), tally)
    rules = select_rules([tally])[0].invariants
    assert len(rules) > 20
    for least in (10**6, 50):
        monkeypatch.setattr(memory_limit, "LEAST", least)
        monkeypatch.setattr(memory_limit, "TIMES", 1 if least == 50 else 4)
        engine = Engine(rules)
        for window in restless():
            assert engine.feed(window) == []
    forgot = [memory for memory in engine._limits.values() if memory._gaps]
    assert forgot, "some relation was given a gap"
    assert sum(tried.triggered > 0 for tried in engine.outcome.tried.values()) > len(rules) / 2


def test_a_gap_is_shown_where_a_relation_has_outgrown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "EVERY", 3)
    monkeypatch.setattr(memory_limit, "LEAST", 10)
    names: dict[str, int] = {}
    relation = _Remembers(names)
    memory = MemoryLimit(relation)
    shifts = []
    for index in range(12):
        (shown,) = memory.with_gaps([Window(index, index, "train")])
        shifts.append(shown.index - index)
        names.update({f"{index}.{number}": number for number in range(8)})
    # First looked at with 16 entries: 64 are the most; there are 88 with the twelfth window.
    assert shifts == [0] * 11 + [1]
    assert memory.with_gaps([replace(Window(3, 3, "train"), rank=rank) for rank in range(2)])[1].index == 4


@dataclass
class _Remembers:
    names: dict[str, int]
    inner: list[deque[int]] = field(default_factory=lambda: [deque([1, 2])])


def test_entries_are_counted_to_the_bottom_and_once() -> None:
    shared = {"a": 1, "b": 2}
    relation = _Remembers(shared)
    relation.inner.append(deque([3]))
    assert entries(relation) == 2 + 2 + 2 + 1
    again = {"x": shared, "y": shared}
    assert entries(again) == 2 + 2
    assert entries({"window": Window(0, 0, "train"), "text": "long text", "pair": (1, 2)}) == 3


def test_caches_are_bounded() -> None:
    kept: BoundedCache[int, str] = BoundedCache(10)
    for number in range(95):
        assert kept.put(number, str(number)) == str(number)
        assert number in kept and len(kept) <= 10
