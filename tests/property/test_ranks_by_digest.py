"""Ranks that are compared by digests fail the rules that they fail when all that they hold is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from traincheck.checking.digests import Classes, RecordedValues, lean
from traincheck.relations.consistent.ranks.replicas import THOUGH_KEPT
from traincheck.relations.consistent.relation import Consistent
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import LIFECYCLE, TRAIN, Call, Change, Reading, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.occasion import Occasion

STEP = ("torch.optim.SGD.step", "torch.optim.Optimizer.step")
NAMES = [f"layers.{layer}.{part}" for part in ("norm", "weight") for layer in range(2)]
LR = "SGD.group0"


class Job(NamedTuple):
    """Ranks that hold for each variable the value of one owner. One rank goes wrong in some step."""

    owners: tuple[tuple[int, ...], ...]
    wrong: int
    since: int
    variable: str

    def value(self, name: str, rank: int, step: int) -> int:
        """Return the value of a variable on a rank after a step."""
        owner = self.owners[NAMES.index(name)][rank]
        away = rank == self.wrong and name == self.variable and step >= self.since
        return hash((name, owner, step, rank if away else -1)) % 10**9

    def window(self, rank: int, step: int) -> Window:
        """Return the window of a rank and step. Rates are recorded when they change, as in recordings."""
        late = self.variable == LR and rank == self.wrong and step >= self.since
        readings, changes = [], []
        if step == 1 or (step in (3, 6) and not late):
            readings.append(Reading(1, 0, LR, "hyperparameter", "lr", float(step)))
        for index, name in enumerate(NAMES):
            before, after = self.value(name, rank, step - 1), self.value(name, rank, step)
            some = facts(kind="parameter", before="some")
            readings.append(Reading(10 + index, 0, name, "parameter", "used_data", before, context=some))
            readings.append(Reading(20 + index, 0, name, "parameter", "used_grad", after + 1, context=some))
            changes.append(Change(30 + index, 0, name, "parameter", "data", "some", "some", True, fingerprint=after))
        call = Call(0, 1000, -1, LIFECYCLE, STEP)
        return Window(step - 1, step, TRAIN, (call,), tuple(changes), rank, 100 + rank, tuple(readings))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    ranks = draw(st.integers(2, 5))
    kinds = {
        "replicas": (0,) * ranks,
        "shards": tuple(range(ranks)),
        "shards with copies": tuple(rank % 2 for rank in range(ranks)),
    }
    of_part = {part: draw(st.sampled_from(sorted(kinds))) for part in ("norm", "weight")}
    owners = [kinds[of_part[name.rpartition(".")[2]]] for name in NAMES]
    if draw(st.booleans()):
        owners[0] = kinds["replicas"]  # of the same section as one that may be sharded
    wrong, since, variable = st.integers(0, ranks - 1), st.integers(2, 8), st.sampled_from(["", LR, *NAMES])
    return Job(tuple(owners), draw(wrong), draw(since), draw(variable))


def failing(relation: Consistent, windows: Sequence[Window]) -> set[tuple[object, ...]]:
    """The occasions that speak against ranks which were to be alike: shards differ, whatever is known of them."""
    return {
        (occasion.subject, occasion.context, variable)
        for occasion in relation.across(windows)
        for variable in occasion.variables
        if occasion.failed and (variable == LR or _were_alike(occasion))
    }


def _were_alike(occasion: Occasion) -> bool:
    known = any(value for name, value in occasion.context if name in ("copies", "same_before"))
    return known or occasion.note.endswith(THOUGH_KEPT)


@settings(max_examples=40, deadline=None)
@given(jobs())
@example(Job(((0, 1), (0, 1), (0, 0), (0, 0)), 0, 2, "layers.0.weight"))  # shards in step 1, an error in step 2
def test_digests_and_full_values_give_the_same_failures(job: Job) -> None:
    in_full, by_digest = Consistent(), Consistent()
    ranks = range(len(job.owners[0]))
    windows: list[Window] = []
    classes = Classes(RecordedValues(lambda window: windows[window.rank]))
    for step in range(1, 8):
        windows[:] = [job.window(rank, step) for rank in ranks]
        failed = failing(by_digest, classes.together([lean(window, EVERYTHING) for window in windows]))
        assert failed == failing(in_full, windows), step
        if not failed:
            classes.accept_differences()
