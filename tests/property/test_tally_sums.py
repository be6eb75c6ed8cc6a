"""Tallies of processes add up to the same bytes in any order and grouping, on disk and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.tally import MAX_VALUES, Tally
from traincheck.inference.tally_files import read_tallies, write_tallies
from traincheck.inference.tally_runs import each_run_once, tally_windows
from traincheck.invariants.book import write_book
from traincheck.vocab.events import EVAL, FUNCTION, LIFECYCLE, MODULE, NO_CALL, TRAIN, Call, Change, Window
from traincheck.vocab.facts import Facts
from traincheck.vocab.occasion import Occasion, Property, Subject

STATES = st.sampled_from(["none", "zero", "some"])
CALLS = [
    (LIFECYCLE, ("torch.optim.SGD.step", "torch.optim.Optimizer.step"), "SGD"),
    (LIFECYCLE, ("torch.optim.SGD.zero_grad", "torch.optim.Optimizer.zero_grad"), "SGD"),
    (LIFECYCLE, ("torch.optim.Adam.step", "torch.optim.Optimizer.step"), "Adam"),
    (LIFECYCLE, ("torch.autograd.backward",), ""),
    (MODULE, ("torch.nn.Linear.forward", "torch.nn.Module.forward"), "Net.fc"),
    (FUNCTION, ("torch.nn.functional.linear",), ""),
]
# One type for each fact and argument: True and 1 of one fact are one context to the rules themselves.
contexts = st.fixed_dictionaries(
    {}, optional={"grads": STATES, "training": st.booleans(), "grad_mode": st.sampled_from(["on", "off"])}
).map(lambda pairs: tuple(sorted(pairs.items())))
arguments = st.fixed_dictionaries(
    {}, optional={"set_to_none": st.booleans(), "p": st.none() | st.integers(0, 1) | st.floats(0, 1)}
).map(lambda pairs: tuple(sorted(pairs.items())))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[tuple[Call, ...], tuple[Change, ...]]:
    """Calls, some inside others, and changes around them."""
    calls: list[Call] = []
    changes: list[Change] = []
    seq = 0
    for kind, levels, receiver in draw(st.lists(st.sampled_from(CALLS), max_size=5)):
        inside = bool(calls) and draw(st.booleans())
        parent = calls[-1].seq if inside else NO_CALL
        result: Facts = (("dtype", "float32"),) if draw(st.booleans()) else ()
        context_and_arguments = draw(contexts), draw(arguments)
        calls.append(Call(seq, seq + 1, parent, kind, levels, receiver, "", *context_and_arguments, result))
        if kind == LIFECYCLE and draw(st.booleans()):
            attribute = draw(st.sampled_from(["data", "grad"]))
            before, after = draw(STATES), draw(STATES)
            of = draw(st.sampled_from(["Net.w", "Net.b"])), "parameter", attribute
            changes.append(Change(seq + 1, seq, *of, before, after, draw(st.booleans()), receiver, draw(contexts)))
        seq += 2
    return tuple(calls), tuple(changes)


processes = st.lists(st.tuples(bodies(), st.sampled_from([TRAIN, TRAIN, EVAL])), min_size=1, max_size=5).map(
    lambda bodies_and_stages: [
        Window(index, index + 1, stage, calls, changes)
        for index, ((calls, changes), stage) in enumerate(bodies_and_stages)
    ]
)
runs = st.lists(
    st.tuples(st.sampled_from(["a.py", "b.py", "c.py"]), st.lists(processes, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)


def part(script: str, number: int, windows: Sequence[Window]) -> Tally:
    tally = Tally(script, f"digest of {script}", f"run {number}")
    tally_windows(windows, tally)
    return tally


def grouped(parts: Sequence[Tally], draw: st.DataObject) -> Tally:
    """All of the parts merged, in an order and with parentheses that are drawn."""
    left = [copied(tally) for tally in draw.draw(st.permutations(parts))]
    while len(left) > 1:
        index = draw.draw(st.integers(0, len(left) - 2))
        left[index].merge(left.pop(index + 1))
    return left[0].arrange()


def copied(tally: Tally) -> Tally:
    again = Tally(tally.script, tally.digest, tally.run)
    again.merge(tally)
    return again


def in_bytes(tallies: Sequence[Tally]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_tallies(tallies, Path(folder) / "tallies")
        return (Path(folder) / "tallies").read_bytes()


def reread(tallies: Sequence[Tally]) -> list[Tally]:
    with tempfile.TemporaryDirectory() as folder:
        write_tallies(tallies, Path(folder) / "tallies")
        return read_tallies(Path(folder) / "tallies")


def learned(tallies: Sequence[Tally]) -> tuple[bytes, bytes]:
    """Book and journal, as files."""
    book, journal = select_rules(each_run_once((Path("here"), tally) for tally in tallies).tallies)
    with tempfile.TemporaryDirectory() as folder:
        write_book(book, Path(folder) / "book")
        journal.write(Path(folder) / "journal")
        return (Path(folder) / "book").read_bytes(), (Path(folder) / "journal").read_bytes()


@settings(max_examples=20, deadline=None)
@given(runs, st.data())
def test_order_grouping_and_rest_change_nothing(
    recorded: list[tuple[str, list[list[Window]]]], data: st.DataObject
) -> None:
    parts = [
        [part(script, number, windows) for windows in processes] for number, (script, processes) in enumerate(recorded)
    ]
    plain = []
    for of_run in parts:
        whole = copied(of_run[0])
        for other in of_run[1:]:
            whole.merge(other)
        plain.append(whole.arrange())
    shuffled = data.draw(st.permutations([grouped(of_run, data) for of_run in parts]))
    assert sorted(in_bytes([tally]) for tally in shuffled) == sorted(in_bytes([tally]) for tally in plain)
    assert learned(shuffled) == learned(plain)
    at_rest = [tally for counted in shuffled for tally in reread([counted])]
    assert in_bytes(at_rest) == in_bytes(shuffled)
    assert learned(at_rest) == learned(plain)
    assert learned([*plain, *at_rest]) == learned(plain)  # each run counts once, however often it is named


@settings(max_examples=60, deadline=None)
@given(st.lists(processes, min_size=1, max_size=3))
def test_a_step_of_several_processes_is_one_step(recorded: list[list[Window]]) -> None:
    parts = [part("a.py", 0, windows) for windows in recorded]
    whole = copied(parts[0])
    for other in parts[1:]:
        whole.merge(other)
    assert whole.steps == max(part_tally.steps for part_tally in parts)
    for key, cells in whole.cells.items():
        for context, cell in cells.items():
            for prop in cell.properties:
                counts = [
                    counted.cells[key][context].of(prop) for counted in parts if context in counted.cells.get(key, {})
                ]
                judged = [count for count in counts if count is not None]
                count = cell.of(prop)
                assert count is not None
                assert count.held == sum(counted.held for counted in judged)
                assert count.failed >= sum(counted.failed for counted in judged)
                assert 0 <= count.windows <= max(len(windows) for windows in recorded)


spans = st.lists(st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=12), min_size=1, max_size=4)


@given(spans)
def test_sketches_count_distinct_windows_of_all_processes(processes: list[list[tuple[int, bool]]]) -> None:
    """Exactly, as long as there are no more than bits in a sketch; whichever process saw which of them."""
    prop, key = Property("holds", "x"), ("R", Subject("f"))
    whole = Tally("a.py", "")
    for process in processes:
        tally = Tally("a.py", "")
        for index, holds in sorted(process):
            held, failed = ({prop}, set[Property]()) if holds else (set[Property](), {prop})
            tally.add_occasions("R", [Occasion(key[1], (), held, failed, 0)], index)
        whole.merge(tally)
    seen = {index for process in processes for index, _ in process}
    missed = {index for process in processes for index, holds in process if not holds}
    counts = [count for _, count in whole.evidence(key, prop)]
    assert [(count.windows, count.seen, count.missed) for count in counts] == (
        [(len(seen), sum(1 << index for index in seen), sum(1 << index for index in missed))] if seen else []
    )


facts = st.dictionaries(
    st.sampled_from("abc"),
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "True", "1", "\x00", "é", '"']),
    max_size=3,
).map(lambda pairs: tuple(sorted(pairs.items())))
properties = st.builds(Property, st.sampled_from("xy"), st.sampled_from(["u", "v é"]), st.sampled_from(["", "k=1"]))
occasions = st.builds(
    Occasion,
    subject=st.builds(Subject, st.sampled_from(["f", "g"]), st.sampled_from(["call", "each"])),
    context=facts,
    held=st.frozensets(properties, max_size=2),
    failed=st.none() | st.frozensets(properties, max_size=2),
    seq=st.just(0),
    variables=st.lists(st.sampled_from("vw"), max_size=2).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(occasions, max_size=6), max_size=4))
def test_a_round_trip_preserves_everything(occasion_lists: list[list[Occasion]]) -> None:
    tally = Tally("a.py", "d", "r")
    for window, occasions_of_window in enumerate(occasion_lists):
        tally.add_occasions("R", occasions_of_window, window)
    (again,) = reread([tally])
    assert repr(again.cells) == repr(_without_latest(tally)), "True, 1 and 1.0 are equal, and three things"
    assert in_bytes([again]) == in_bytes([tally])


def _without_latest(tally: Tally) -> object:
    """The cells as they are once nothing more is added to them."""
    return {
        key: {
            context: replace(
                cell, latest=-1, properties={prop: replace(count, latest=-1) for prop, count in cell.properties.items()}
            )
            for context, cell in cells.items()
        }
        for key, cells in tally.arrange().cells.items()
    }


@given(st.lists(st.lists(st.none() | st.booleans() | st.integers(0, 20) | st.floats(0, 1), max_size=20), max_size=4))
def test_the_same_few_of_many_values_are_remembered(value_lists: list[list[object]]) -> None:
    def of(values: Sequence[object]) -> Tally:
        tally = Tally("a.py", "")
        calls = tuple(
            Call(index, index, NO_CALL, FUNCTION, ("f",), args=(("x", value),))  # type: ignore[arg-type]
            for index, value in enumerate(values)
        )
        tally.add_window(Window(0, 1, TRAIN, calls))
        return tally

    whole, parts = Tally("a.py", ""), [of(values) for values in value_lists]
    for counted in parts:
        whole.merge(counted)
    backwards = Tally("a.py", "")
    for counted in reversed(parts):
        backwards.merge(counted)
    every = sorted({repr(value) for values in value_lists for value in values})
    expected = {("f", "x"): set(every[:MAX_VALUES])} if every else {}
    assert whole.arguments == backwards.arguments == expected
