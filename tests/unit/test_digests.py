"""Ranks publish digests, send full windows on request, and report skipped comparisons."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from sample_windows import ReadingFields, Script
from traincheck.checking import digests
from traincheck.checking.digests import (
    DIGEST,
    EVERY,
    MAX_SECTIONS,
    SAMPLE,
    SETTLING,
    VALUES_PER_STEP,
    Classes,
    RecordedValues,
    Selection,
    digests_of,
    lean,
    section_of,
    selected,
    value_digests,
)
from traincheck.testing.readable_traces import to_text
from traincheck.vocab.demand import EVERYTHING, NOTHING
from traincheck.vocab.events import SharedValues, Window


def held(rank: int, step: int, values: Mapping[str, int]) -> Window:
    """The window of a rank that updates these parameters."""
    reads: list[ReadingFields] = [("parameter.used_data", name, value) for name, value in values.items()]
    changes = [{"variable": name, "fingerprint": value + 1} for name, value in values.items()]
    script = Script(rank=rank).window()
    script.step(*reads, ("hyperparameter.lr", "SGD.param_groups[0]", 0.1), changes=changes)
    script.call("train.draw")
    return replace(script.windows[0], index=step, step=step)


class Job:
    """Ranks whose values a test sets step by step."""

    def __init__(self, size: int) -> None:
        self.requested: list[int] = []
        self.silent: set[int] = set()
        self.classes = Classes(RecordedValues(self._recorded))
        self._size = size
        self._windows: list[Window] = []
        self._step = 0

    def step(self, value: Callable[[int, str], int], names: Sequence[str], *, wrong: bool = False) -> list[Window]:
        """The windows put together, where no rule failed in them unless they are `wrong`."""
        self._step += 1
        self.requested.clear()
        ranks = range(self._size)
        self._windows = [held(rank, self._step, {name: value(rank, name) for name in names}) for rank in ranks]
        merged = self.classes.together([lean(window, EVERYTHING) for window in self._windows])
        if not wrong:
            self.classes.accept_differences()
        return merged

    def _recorded(self, window: Window) -> Window | None:
        if window.rank not in self.requested:
            self.requested.append(window.rank)
        return None if window.rank in self.silent else self._windows[window.rank]


def same(rank: int, name: str) -> int:
    return len(name)


def own(rank: int, name: str) -> int:
    return 1000 * rank + len(name)


NAMES = ("layers.0.w", "layers.1.w", "head.b")


@pytest.mark.parametrize(
    ("variable", "section"),
    [("layers.11.norm.weight", "layers.#.norm.weight"), ("a1.b22", "a#.b#"), ("weight", "weight"), ("", "")],
)
def test_a_section_groups_names_with_different_numbers(variable: str, section: str) -> None:
    assert section_of(variable) == section
    assert section_of(variable, crowded=True) == section_of(section, crowded=True)
    assert section_of(variable, crowded=True).startswith("~")


def test_a_rank_publishes_section_digests_and_demanded_events() -> None:
    window = held(0, 1, dict.fromkeys(NAMES, 5))
    digested = lean(window, EVERYTHING)
    assert set(digests_of(digested)) == {"layers.#.w", "head.b"} and digested.changes == ()
    assert [reading.attribute for reading in digested.readings if reading.kind != DIGEST] == ["lr"]
    assert digested.calls == window.calls and (digested.index, digested.step, digested.rank) == (1, 1, 0)
    least = lean(window, NOTHING)
    assert digests_of(least) == digests_of(digested) and len(least.readings) == 1 and least.calls == ()


def test_a_rank_sends_selected_values_and_their_calls() -> None:
    window = held(0, 1, dict.fromkeys(NAMES, 5))
    everything = selected(window, Selection(frozenset(), frozenset({"layers.#.w", "head.b"})))
    assert everything.changes == window.changes and [call.receiver for call in everything.calls] == ["SGD"]
    assert {reading.attribute for reading in everything.readings} == {"used_data"}
    assert digests_of(lean(everything, NOTHING)) == digests_of(lean(window, NOTHING)), "it holds all that was digested"
    some = selected(window, Selection(frozenset({"head.b"}), frozenset()))
    assert {event.variable for event in (*some.changes, *some.readings)} == {"head.b"}


def test_digests_of_values_differ_for_the_variables_that_differ() -> None:
    names = frozenset({"layers.#.w"})
    first, second = (
        value_digests(held(0, 1, {"layers.0.w": 1, "layers.1.w": value, "head.b": 1}), names) for value in (2, 3)
    )
    assert set(first) == {"layers.0.w", "layers.1.w"} and first["layers.0.w"] == second["layers.0.w"]
    assert set(first["layers.1.w"]).isdisjoint(second["layers.1.w"])


def test_any_value_of_a_section_changes_its_digest_and_no_other() -> None:
    before = digests_of(lean(held(0, 1, dict.fromkeys(NAMES, 5)), EVERYTHING))
    for name in NAMES:
        after = digests_of(lean(held(0, 1, {**dict.fromkeys(NAMES, 5), name: 6}), EVERYTHING))
        assert {key for key in before if before[key] != after[key]} == {section_of(name)}
    swapped = [{"layers.0.w": 1, "layers.1.w": 2}, {"layers.0.w": 2, "layers.1.w": 1}]
    first, second = (digests_of(lean(held(0, 1, values), EVERYTHING)) for values in swapped)
    assert first != second


def test_the_order_of_values_does_not_matter() -> None:
    values = {f"layers.{number}.w": number for number in range(20)}
    names = list(values)
    random.Random(7).shuffle(names)
    windows = [
        lean(held(0, 1, ordered_values), EVERYTHING)
        for ordered_values in (values, {name: values[name] for name in names})
    ]
    assert digests_of(windows[0]) == digests_of(windows[1])


def test_digests_are_numbers_that_a_message_can_hold() -> None:
    section_digests = digests_of(lean(held(0, 1, {f"layers.{number}.w": number for number in range(200)}), EVERYTHING))
    assert all(isinstance(value, int) and 0 <= value < 2**64 for value in section_digests.values())


def test_digests_are_the_same_in_every_process() -> None:
    window = held(0, 1, dict.fromkeys(NAMES, 5))
    code = (
        "import sys; from traincheck.checking.digests import lean; from traincheck.vocab.demand import EVERYTHING\n"
        "from traincheck.testing.readable_traces import from_text, to_text\n"
        "sys.stdout.write(to_text([lean(window, EVERYTHING) for window in from_text(sys.stdin.read())]))"
    )
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, input=to_text([window]), capture_output=True, text=True, env=environ, timeout=60)
        assert done.stdout == to_text([lean(window, EVERYTHING)]), done.stderr


def test_many_sections_share_digests() -> None:
    def letters(number: int) -> str:
        return "".join(chr(ord("a") + int(digit)) for digit in str(number))

    names = [f"part_{letters(number)}.w" for number in range(10 * MAX_SECTIONS)]  # of each digest some
    section_digests = digests_of(lean(held(0, 1, dict.fromkeys(names, 1)), EVERYTHING))
    assert len(section_digests) <= MAX_SECTIONS and all(name.startswith("~") for name in section_digests)
    job = Job(3)
    assert [window.shared for window in job.step(same, names)] == [SharedValues(0)] * 3
    wrong = lambda rank, name: 7 if rank == 2 and name == names[3] else 5  # noqa: E731
    merged = job.step(wrong, names, wrong=True)
    assert job.requested == [0, 2] and [window.shared for window in merged] == [
        SharedValues(0),
        SharedValues(0),
        SharedValues(2),
    ]
    assert len(merged[2].changes) == len(names)
    for _ in range(2):
        merged = job.step(own, names)
    assert job.requested == [] and merged[0].changes == (), "shards, though they share digests"
    assert {reading.attribute for reading in merged[0].readings if reading.kind != DIGEST} == {"lr"}, (
        "what is told as it is stays, whatever its name"
    )


def test_agreeing_ranks_send_no_full_windows() -> None:
    job, looked_at = Job(4), []
    for step in range(1, 2 * EVERY + 1):
        merged = job.step(same, NAMES)
        assert [window.shared for window in merged] == [SharedValues(0)] * 4
        assert len(merged[0].changes) == 3 * len(job.requested) and not any(window.changes for window in merged[1:])
        looked_at += [step] * (job.requested == [0])
    assert looked_at == [*range(1, SETTLING + 1), EVERY, 2 * EVERY], "on the first rank, now and then"
    assert job.classes.looked_at == 0 and job.classes.not_compared() == ()


def test_shards_are_looked_at_once() -> None:
    job = Job(4)
    merged = job.step(own, NAMES)
    assert job.requested == [0, 1, 2, 3] and [window.shared for window in merged] == [
        SharedValues(rank) for rank in range(4)
    ]
    looked_at = job.classes.looked_at
    for _ in range(2 * EVERY):
        merged = job.step(own, NAMES)
        assert (
            job.requested in ([0], []) and [window.shared for window in merged] == [SharedValues(0, sharded=True)] * 4
        )
        assert merged[0].changes == () and {reading.attribute for reading in merged[0].readings} - {"values"} == {"lr"}
    assert job.classes.looked_at == looked_at and job.classes.not_compared() == ()


def test_violating_sections_are_compared_in_every_step() -> None:
    job = Job(3)
    for _ in range(3):
        job.step(own, NAMES, wrong=True)
        assert job.requested == [0, 1, 2]


def test_a_replica_of_a_shard_that_breaks_is_looked_at_again() -> None:
    """Two pairs of four ranks hold the same part."""
    job = Job(4)

    def copies(rank: int, name: str) -> int:
        return rank % 2

    def broken(rank: int, name: str) -> int:
        return 77 if rank == 3 and name == NAMES[0] else rank % 2

    for _ in range(3):
        job.step(copies, NAMES)
    assert job.requested == []
    merged = job.step(broken, NAMES, wrong=True)
    assert job.requested == [0, 1, 3] and [window.values_of for window in merged] == [0, 1, 0, 3]
    assert {change.variable for change in merged[3].changes} == {"layers.0.w", "layers.1.w"}, "of its section"


MANY = [f"layers.{number}.w" for number in range(200)]


def changed_variables(merged: Sequence[Window]) -> list[set[str]]:
    return [{change.variable for change in window.changes} for window in merged]


def test_only_differing_values_are_requested_after_a_divergence() -> None:
    """Also of the section that holds them; a further one is found in its step."""
    job, wrong = Job(3), {"layers.7.w"}

    def value(rank: int, name: str) -> int:
        return 77 if rank == 2 and name in wrong else 5

    for _ in range(SETTLING):
        job.step(lambda rank, name: 5, MANY)
    for _ in range(3):
        assert changed_variables(job.step(value, MANY)) == [wrong, set(), wrong]
    wrong.add("layers.8.w")
    assert changed_variables(job.step(value, MANY)) == [wrong, set(), wrong]
    wrong.remove("layers.7.w")
    merged = job.step(value, MANY)
    assert changed_variables(merged)[2] >= {"layers.8.w"} and len(merged[2].changes) <= 2


def test_equal_values_of_a_section_that_always_differs_are_requested_at_first() -> None:
    """They show which of its variables are replicas."""
    job = Job(2)
    for _ in range(SETTLING):
        merged = job.step(lambda rank, name: rank if name == MANY[0] else 5, MANY)
        assert changed_variables(merged) == [set(MANY)] * 2
    merged = job.step(lambda rank, name: rank if name == MANY[0] else 5, MANY)
    assert changed_variables(merged) == [{MANY[0]}] * 2


def test_a_sample_of_many_shards_is_judged() -> None:
    merged = Job(2).step(own, MANY)
    assert changed_variables(merged) == [set(sorted(MANY)[:SAMPLE])] * 2


def test_large_models_are_compared_in_full_less_often() -> None:
    job, names = Job(2), [f"layers.{number}.w" for number in range(10 * VALUES_PER_STEP)]
    requested = [step for step in range(1, 60) if job.step(same, names) and job.requested]
    assert requested == [*range(1, SETTLING + 1), 20, 40]


def test_newly_diverged_ranks_are_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_IN_FULL", 4)
    size, job = 12, Job(12)

    def copies(rank: int, name: str) -> int:
        return rank // 2

    def broken(rank: int, name: str) -> int:
        return 99 if rank == size - 1 else rank // 2

    merged = job.step(copies, NAMES)
    assert job.requested == [0, 2, 4, 6] and [window.rank for window in merged] == list(range(8)), (
        "the others are left out"
    )
    merged = job.step(copies, NAMES)
    assert job.requested == [] and len(merged) == size and job.classes.not_compared() == ()
    merged = job.step(broken, NAMES, wrong=True)
    assert job.requested[:3] == [0, 10, 11] and len(job.requested) == 4
    assert {window.rank for window in merged} >= {10, 11}


def test_repeatedly_skipped_comparisons_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_IN_FULL", 4)
    job = Job(6)
    for _ in range(SETTLING):
        job.step(own, NAMES, wrong=True)
    assert job.classes.not_compared() == ()
    job.step(own, NAMES, wrong=True)
    assert "in 4 steps too many ranks differed" in job.classes.not_compared()[0]


@pytest.mark.parametrize("silent", [1, 2])
def test_ranks_that_give_no_answer_are_left_out_and_not_taken_for_shards(silent: int) -> None:
    job = Job(3)
    job.silent = {silent}
    parted = lambda rank, name: 9 if rank == silent else 5  # noqa: E731
    merged = job.step(parted, NAMES)
    assert [window.rank for window in merged] == [rank for rank in range(3) if rank != silent]
    assert "in 1 steps" in job.classes.not_compared()[0]
    job.silent.clear()
    merged = job.step(parted, NAMES, wrong=True)
    assert job.requested == [0, silent] and len(merged) == 3


def test_missing_replies_give_no_comparison() -> None:
    job = Job(2)
    job.silent = {0, 1}
    assert job.step(own, NAMES) == []


def test_a_part_of_the_model_that_one_rank_has_alone_is_no_replica() -> None:
    """Stages of a pipeline have other names; what both have is still compared."""
    classes = Classes(RecordedValues(lambda window: windows[window.rank]))
    for step in range(1, 4):
        windows = [held(0, step, {"first.w": 1, "tied.w": 2}), held(1, step, {"last.w": 3, "tied.w": 2})]
        merged = classes.together([lean(window, EVERYTHING) for window in windows])
        classes.accept_differences()
    assert classes.looked_at == 1
    assert [window.shared for window in merged] == [SharedValues(0, sharded=True)] * 2
    assert [change.variable for change in merged[0].changes] == ["tied.w"]
