"""One meaning: live, offline and selective observation judge the same program alike, rule by rule.

A recording of everything reads the values of a fixed sample of calls only (see Note [What is read of a call] in
`sources/tensors/call_summaries.py`), one for some rules those of every call that they are about. So a rule that asks
for values is
judged on more occasions there, and its verdict is what must be the same; of all other rules everything must be.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import observing
from traincheck.checking.engine import Engine, Outcome, demand_of
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.learn import tally_windows
from traincheck.inference.tally import Tally
from traincheck.trace.reader import read_windows
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.demand import EVERYTHING, TENSOR_VALUES, Demand
from traincheck.vocab.events import Window
from traincheck.vocab.invariant import Invariant

Program = Callable[[], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.dropout(torch.relu(self.norm(self.body(x))), 0.2, self.training))


def loader(batches: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(batches * 4, 4), torch.randint(0, 2, (batches * 4,))), batch_size=4)


def classify(
    make: Callable[..., torch.optim.Optimizer],
    *,
    clears: str = "before",
    returns_to_training: bool = True,
    copies: bool = False,
    clips: bool = False,
) -> None:
    """Three epochs of two steps with a validation; the arguments plant mistakes."""
    model = Net()
    optimizer = make((copy.deepcopy(model) if copies else model).parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for epoch in range(3):
        if returns_to_training or epoch == 0:
            model.train()
        for x, y in loader(2):
            if clears == "before":
                optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if clears == "too late":
                optimizer.zero_grad()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in loader(1):
                model(x)
        scheduler.step()


def accumulate() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(10):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 4)).float().mean()
        (loss / 2).backward()
        if number % 2:
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None


def compete(broken: bool = False) -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for number in range(5):
        if broken and number == 2:
            nn.init.constant_(generator.bias, float("nan"))
        critic.zero_grad()
        (critic(torch.randn(3, 4)) - critic(generator(torch.randn(3, 4)).detach())).mean().backward()
        of_critic.step()
        generator.zero_grad()
        critic(generator(torch.randn(3, 4))).mean().backward()
        of_generator.step()


def train_half() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()


GOOD: dict[str, Program] = {
    "sgd": lambda: classify(torch.optim.SGD),
    "clipped": lambda: classify(torch.optim.AdamW, clips=True),
    "accumulate": accumulate,
    "compete": compete,
}
BUGGY: dict[str, Program] = {
    "never cleared": lambda: classify(torch.optim.SGD, clears="never"),
    "cleared too late": lambda: classify(torch.optim.SGD, clears="too late"),
    "eval never left": lambda: classify(torch.optim.Adam, returns_to_training=False),
    "copies": lambda: classify(torch.optim.SGD, copies=True),
    "half": train_half,
    "not finite": lambda: compete(broken=True),
}
ALL = {**GOOD, **BUGGY}
ALL_RELATIONS = {"EventContain", "APISequence", "APIArg", "APIOutput", "Consistent", "Periodic"}


def record(name: str, demand: Demand) -> list[Window]:
    torch.manual_seed(0)
    with observing(demand) as seen:
        ALL[name]()
    assert seen.faults == [] and seen.missing == []
    return seen.windows


@functools.cache
def in_full(name: str) -> list[Window]:
    return record(name, EVERYTHING)


@functools.cache
def rules() -> tuple[Invariant, ...]:
    """Return the rules learned from the good programs."""
    tallies = []
    for name in GOOD:
        tally = Tally(name, name)
        assert tally_windows(in_full(name), tally)
        tallies.append(tally)
    return select_rules(tallies)[0].invariants


def judged(deployed: Sequence[Invariant], windows: Sequence[Window]) -> Outcome:
    engine = Engine(deployed)
    for window in windows:
        engine.feed(window)
    return engine.outcome


@functools.cache
def of_values() -> frozenset[str]:
    """The ids of the rules that ask for the values of tensors."""
    return frozenset(
        rule.id for rule in rules() if any(value in TENSOR_VALUES for _, value in demand_of([rule]).call_values)
    )


def comparable(outcome: Outcome) -> object:
    """All that a report is made from, less the positions of events, which depend on how many were recorded.

    (Of rules that ask for values see `verdicts`.)
    """
    violations = [
        (
            violation.invariant.id,
            violation.step,
            violation.window,
            violation.stage,
            violation.site,
            violation.receiver,
            violation.variables,
            violation.occasions,
        )
        for violation in outcome.violations
        if violation.invariant.id not in of_values()
    ]
    tried = {id: tried for id, tried in outcome.tried.items() if id not in of_values()}
    return tried, violations, outcome.windows, outcome.steps


def verdicts(outcome: Outcome) -> dict[str, tuple[bool, bool]]:
    """Return whether each rule was judged, and whether it was violated."""
    return {id: (tried.triggered > 0, tried.failed > 0) for id, tried in outcome.tried.items()}


def assert_selective_agrees(selective: Outcome, full: Outcome) -> None:
    assert comparable(selective) == comparable(full)
    assert verdicts(selective) == verdicts(full)
    for id in of_values() & full.tried.keys():
        assert selective.tried[id].triggered >= full.tried[id].triggered
        assert selective.tried[id].failed >= full.tried[id].failed


def test_there_is_something_to_agree_about() -> None:
    assert {rule.relation for rule in rules()} == ALL_RELATIONS
    assert len(rules()) > 70 and len(of_values()) > 0
    for name in GOOD:
        assert judged(rules(), in_full(name)).violations == []
    for name in ("never cleared", "copies", "not finite"):
        assert judged(rules(), in_full(name)).violations != []
    by_values = {
        violation.invariant.id for violation in judged(rules(), in_full("not finite")).violations
    } & of_values()
    assert by_values, "no rule about values is violated"


@pytest.mark.parametrize("name", ALL)
def test_a_trace_read_back_is_judged_as_the_windows_were(name: str) -> None:
    windows = in_full(name)
    with tempfile.TemporaryDirectory() as folder:
        with TraceWriter(folder, 0, 0) as writer:
            for window in windows:
                writer.write(window)
        again = list(read_windows(writer.path))
    assert repr(again) == repr(windows)  # what is not a number equals nothing, and 1 equals True
    live, offline = judged(rules(), windows), judged(rules(), again)
    assert (live.tried, live.violations) == (offline.tried, offline.violations)


@pytest.mark.parametrize("name", ALL)
def test_a_selective_recording_is_judged_as_a_full_one(name: str) -> None:
    selective = record(name, demand_of(rules()))
    assert sum(len(window.calls) for window in selective) < sum(len(window.calls) for window in in_full(name))
    assert_selective_agrees(judged(rules(), selective), judged(rules(), in_full(name)))


@settings(max_examples=12)
@given(st.sampled_from(list(ALL)), st.data())
def test_a_few_rules_alone_are_judged_as_among_all(name: str, data: st.DataObject) -> None:
    # What changes inside a region is observed around the calls in it, which the demand of such a rule does not name.
    candidates = [rule for rule in rules() if rule.subject.api != "torch.autocast"]
    few = data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=2, unique_by=lambda rule: rule.id))
    assert_selective_agrees(judged(few, record(name, demand_of(few))), judged(few, in_full(name)))


@given(st.sampled_from(list(ALL)), st.sets(st.integers(0, 100)))
@settings(max_examples=30)
def test_rules_are_judged_one_by_one(name: str, chosen: set[int]) -> None:
    together = judged(rules(), in_full(name))
    few = [rule for index, rule in enumerate(rules()) if index in chosen]
    alone = judged(few, in_full(name))
    assert alone.tried == {rule.id: together.tried[rule.id] for rule in few}
    ids = {rule.id for rule in few}
    assert {v.invariant.id for v in alone.violations} == {v.invariant.id for v in together.violations} & ids
