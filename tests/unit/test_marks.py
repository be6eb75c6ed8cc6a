"""Values that programs name are recorded without effects, and compared by name and order."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import traincheck
from traincheck.comparison.mark_report import mark_data, mark_lines, mark_title
from traincheck.comparison.marks import MarkComparison, MarkedValue, RunMarks, compare_marks, marks_of_ranks
from traincheck.runtime.marks import receive
from traincheck.sources.operations import marks as mark_source
from traincheck.sources.operations.marks import MarkSink
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import attach, build_all
from traincheck.vocab.demand import NOTHING
from traincheck.vocab.marks import Mark

WHOLE = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Recording:
    """The marks of a program, and the reported problems."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.problems: list[str] = []

    @property
    def keys(self) -> list[tuple[str, int]]:
        return [(mark.name, mark.occurrence) for mark in self.marks]


@contextmanager
def recorded(is_sampled: Callable[[int], bool] = lambda step: True) -> Iterator[Recording]:
    """Record the marks inside."""
    recording = Recording()
    recorder = Recorder(
        CallSites(()),
        lambda window: None,
        lambda source, error: pytest.fail(f"{source}: {error!r}"),
        is_sampled=is_sampled,
    )
    sink = MarkSink(recording.marks.append, receive, recording.problems.append)
    undo, _ = attach(build_all(recorder, lambda: None, installed=False, marks=sink).sources, NOTHING, recorder)
    try:
        yield recording
    finally:
        undo.close()


def marks_of(program: Callable[[], object]) -> RunMarks:
    with recorded() as recording:
        program()
    assert recording.problems == []
    return marks_of_ranks([recording.marks])


def of_values(**values: object) -> RunMarks:
    """A run that marks these values."""
    return marks_of(lambda: [traincheck.mark(name, value) for name, value in values.items()])


def compared(a: object, b: object) -> MarkComparison:
    """The comparison of two runs that mark one value each."""
    return compare_marks(of_values(x=a), of_values(x=b))


def text(marks: MarkComparison) -> str:
    return "\n".join(mark_lines(marks, "first", "second", is_alone=True))


# -- recording ---------------------------------------------------------------------------------------------------------


def test_without_a_recording_nothing_happens() -> None:
    traincheck.mark("x", object())
    with recorded() as recording:
        pass
    traincheck.mark("x", WHOLE)
    assert recording.marks == []


@pytest.mark.parametrize(
    "make",
    [
        lambda values: torch.tensor(values, dtype=torch.float64),
        lambda values: torch.tensor(values, requires_grad=True),
        lambda values: np.array(values),
        lambda values: np.array(values, dtype=">f4"),
        lambda values: np.array(values, dtype="float32")[::-1][::-1],
        lambda values: torch.tensor([values]).t(),
    ],
)
def test_a_value_is_the_same_in_all_libraries(make: Callable[[list[float]], object]) -> None:
    values = [1.5, -0.25, 2.0]
    marks = compared(values, make(values))
    assert (marks.same, marks.compared) == (1, 1), text(marks)
    assert compared(values, make([1.5, -0.25, 3.0])).first is not None


def test_numbers_are_marked() -> None:
    marks = compare_marks(of_values(a=3, b=True, c=2.5), of_values(a=np.int32(3), b=np.bool_(True), c=np.float64(2.5)))
    assert marks.same == 3


def test_what_cannot_be_read_is_reported_once() -> None:
    class Broken:
        def __array__(self, *_: object) -> None:
            raise ValueError("broken")

    with recorded() as recording:
        for _ in range(2):
            traincheck.mark("text", "text")
            traincheck.mark("ragged", [[1], [2, 3]])
            traincheck.mark("broken", Broken())
            traincheck.mark("meta", torch.empty(2, device="meta"))
            traincheck.mark(3, WHOLE)  # type: ignore[arg-type]
        traincheck.mark("after", WHOLE)
    assert recording.keys == [("after", 1)]
    assert len(recording.problems) == 5 and "(Broken, ValueError)" in recording.problems[2]


@pytest.mark.slow  # it imports the compiler
def test_a_transformed_value_is_reported_and_the_result_stays() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        traincheck.mark("x", x, gradient=True)
        return (x**2).sum()

    with recorded() as recording:
        gradient = torch.func.grad(loss)(WHOLE)  # type: ignore[no-untyped-call]
    assert torch.equal(gradient, 2 * WHOLE) and recording.marks == [] and len(recording.problems) == 1


@pytest.mark.slow  # it imports jax
def test_arrays_of_jax_are_marked() -> None:
    import jax
    import jax.numpy as jnp

    values = [1.5, -0.25, 2.0]
    assert compared(values, jnp.array(values)).same == 1
    assert compared(values, jnp.array(values, jnp.bfloat16)).same == 1

    @jax.jit
    def double(x: jax.Array) -> jax.Array:
        jax.debug.callback(functools.partial(traincheck.mark, "x"), x)
        return x * 2

    with recorded() as recording:
        double(jnp.arange(3.0))
        double(jnp.arange(3.0))
        jax.effects_barrier()
        jax.grad(lambda x: (traincheck.mark("traced", x), (x**2).sum())[1])(jnp.ones(2))
    assert recording.keys == [("x", 1), ("x", 2)]
    assert len(recording.problems) == 1 and "'traced'" in recording.problems[0]


@pytest.mark.slow  # it imports the compiler
def test_compiled_code_has_no_graph_break() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        traincheck.mark("x", x)
        return x * 2

    with recorded() as recording:
        assert torch.equal(torch.compile(double, fullgraph=True, backend="eager")(WHOLE), 2 * WHOLE)
    assert recording.marks == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_forwards_are_not_counted(reentrant: bool) -> None:
    layer = nn.Linear(6, 6)

    def block(x: torch.Tensor) -> torch.Tensor:
        traincheck.mark("block", x)
        return layer(x).relu()

    with recorded() as recording:
        for _ in range(2):
            x = WHOLE.clone().requires_grad_()
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert recording.keys == [("block", 1), ("block", 2)]


def test_marks_of_own_hooks_are_recorded() -> None:
    x = WHOLE.clone().requires_grad_()
    with recorded() as recording:
        y = x * 2
        y.register_hook(lambda gradient: traincheck.mark("hook", gradient))
        y.sum().backward()
    assert recording.keys == [("hook", 1)]


def test_gradients_are_marked_when_the_backward_arrives() -> None:
    weight = WHOLE.clone().requires_grad_()
    with recorded() as recording:
        for _ in range(2):
            traincheck.mark("weight", weight, gradient=True)
            hidden = weight * 3
            traincheck.mark("hidden", hidden, gradient=True)
            traincheck.mark("loss", hidden.sum())
            hidden.sum().backward()
        traincheck.mark("weight", weight, gradient=True)
        assert weight._backward_hooks
        with torch.no_grad():
            traincheck.mark("hidden", weight * 3, gradient=True)
    names = ["weight", "hidden", "loss", "hidden.grad", "weight.grad"]
    assert [mark.name for mark in recording.marks] == [*names, *names, "weight", "hidden"]
    assert not weight._backward_hooks, "the recording leaves no hook"
    assert torch.equal(weight.grad, torch.full_like(weight, 6.0))  # type: ignore[arg-type]
    (gradient,) = (mark for mark in recording.marks if (mark.name, mark.occurrence) == ("hidden.grad", 2))
    assert gradient.sketch.norm == pytest.approx(math.sqrt(24))


def test_values_outside_the_sample_are_counted() -> None:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(lambda step: step % 2 == 1) as recording:
        for _ in range(4):
            output = model(WHOLE)
            traincheck.mark("output", output, gradient=True)
            optimizer.zero_grad()
            output.sum().backward()
            optimizer.step()
    assert {mark.step for mark in recording.marks} <= {1, 3}
    assert ("output", 3) in recording.keys and ("output.grad", 3) in recording.keys
    assert ("output", 2) not in recording.keys


def test_marks_end_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_source, "MAX_MARKS", 5)
    with recorded() as recording:
        for _ in range(9):
            traincheck.mark("x", 1.0)
    assert len(recording.marks) == 5 and recording.problems == [mark_source.LIMIT]


def test_several_threads_mark() -> None:
    with recorded() as recording:
        threads = [threading.Thread(target=lambda: [traincheck.mark("x", 1.0) for _ in range(40)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(mark.occurrence for mark in recording.marks) == list(range(1, 161))


def test_a_mark_takes_no_time_without_a_recording() -> None:
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        traincheck.mark("x", WHOLE)
    finally:
        sys.setprofile(None)
    assert calls.count("call") == 1, "it calls no function"


# -- comparison --------------------------------------------------------------------------------------------------------


def layers(second: Callable[[torch.Tensor], torch.Tensor]) -> RunMarks:
    """A program that marks what its layers return."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(6, 6, generator=generator) for _ in range(3)]

    def program() -> None:
        x = WHOLE
        for step in range(2):
            for name, weight, activate in zip("abc", weights, (torch.tanh, second, torch.tanh), strict=True):
                x = activate(x @ weight)
                traincheck.mark(name, x * (1 + step))

    return marks_of(program)


def test_the_first_mark_with_other_values_is_named() -> None:
    marks = compare_marks(layers(F.gelu), layers(lambda x: F.gelu(x, approximate="tanh")))
    assert marks.first is not None and (marks.first.name, marks.first.after) == ("b", ("a", 1))
    assert (marks.same, marks.behind) == (1, 4)
    assert mark_title(marks.first) == "The difference begins between the marks 'a' and 'b'"
    assert mark_data(marks)["first"]["after"] == {"name": "a", "occurrence": 1}
    assert "6 marks compared: 1 equal up to rounding, 4 differ" in text(marks)


def test_a_difference_in_a_later_occurrence() -> None:
    a, b = layers(F.gelu), layers(F.gelu)
    key = ("a", 2)
    b.values[key] = layers(F.relu).values["c", 2]
    marks = compare_marks(a, b)
    assert marks.first is not None and marks.first.after == ("c", 1)
    assert mark_title(marks.first).endswith("the marks 'c' and 'a' (occurrence 2)")


@pytest.mark.parametrize("shape", [(24,), (1, 4, 6), (2, 2, 6), (4, 6, 1, 1)])
@pytest.mark.parametrize("times", [1, 1000], ids=["all elements", "a sketch"])
def test_row_major_shapes_are_equal(shape: tuple[int, ...], times: int) -> None:
    value = torch.randn(times, 4, 6)
    assert compared(value, value.reshape(times, *shape).flatten(0, 1)).same == 1


@pytest.mark.parametrize("times", [1, 300], ids=["all elements", "a sketch"])
def test_another_order_is_suggested(times: int) -> None:
    value = torch.randn(4, 6 * times, generator=torch.Generator().manual_seed(0))
    marks = compared(value, value.t())
    assert marks.first is not None and marks.first.reordered and "transposed" in text(marks)


def test_a_factor_is_found() -> None:
    marks = compared(WHOLE, WHOLE * 1.25)
    assert marks.first is not None and marks.first.factor == pytest.approx(1.25)
    assert "second has 1.25 times the values of first" in text(marks)


def test_the_largest_difference_of_small_values_is_shown() -> None:
    other = WHOLE.clone()
    other[2, 3] += 0.5
    marks = compared(WHOLE, other)
    assert marks.first is not None and marks.first.elements is not None
    assert marks.first.elements.largest == pytest.approx(0.5) and marks.first.elements.mean == pytest.approx(0.5 / 24)
    assert "at index (2, 3)" in text(marks)
    large = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    assert "5,000 of which the norm" in text(compared(large, large + 0.01))


def test_equal_infinities_are_equal() -> None:
    masked = torch.tensor([0.5, -math.inf, math.nan])
    assert compared(masked, masked.tolist()).same == 1
    marks = compared(masked, torch.tensor([0.5, -1e9, math.nan]))
    assert marks.first is not None and math.isinf(marks.first.results)


def test_other_sizes_differ() -> None:
    marks = compared(WHOLE, WHOLE[:2])
    assert marks.first is not None and "other sizes" in text(marks)


def test_integers_have_no_rounding() -> None:
    tokens = torch.arange(1000) + 30_000
    assert compared(tokens, tokens.int()).same == 1
    assert compared(tokens, tokens.flip(0)).first is not None
    changed = tokens.clone()
    changed[500] += 1
    marks = compared(tokens, changed)
    assert marks.first is not None and marks.first.elements is not None and marks.first.elements.index == 500


def log_probabilities(dtype: torch.dtype, temperature: float = 1.0, *, autocast: bool = False) -> RunMarks:
    """A program whose model has a low precision, and which marks log-probabilities in single precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 50)).to(dtype)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).to(dtype)

    def program() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(x).float() * 5 / temperature
        traincheck.mark("logprobs", logits.log_softmax(-1)[:, 7])

    return marks_of(program)


def test_the_precision_of_the_model_decides_what_rounding_explains() -> None:
    exact = log_probabilities(torch.float32)
    for other in (log_probabilities(torch.bfloat16), log_probabilities(torch.float32, autocast=True)):
        assert other.values["logprobs", 1].first.precision == "bfloat16"
        marks = compare_marks(exact, other)
        assert marks.rounding == 1, text(marks)
    assert compare_marks(exact, log_probabilities(torch.bfloat16, 1.1)).first is not None
    marks = compare_marks(exact, log_probabilities(torch.float32, 1.01))
    assert marks.first is not None and marks.first.elements is not None and marks.first.elements.size == 64


def test_rounding_may_grow_from_mark_to_mark() -> None:
    a = of_values(a=WHOLE, b=WHOLE)
    assert compare_marks(a, of_values(a=WHOLE, b=WHOLE * (1 + 6e-5))).first is not None
    assert compare_marks(a, of_values(a=WHOLE * (1 + 2e-5), b=WHOLE * (1 + 6e-5))).first is None


def test_names_that_one_run_lacks_are_listed() -> None:
    marks = compare_marks(of_values(x=1.0, y=1.0), of_values(x=1.0, z=1.0))
    assert marks.counts == (("y", 1, 0), ("z", 0, 1)) and "'y' 1 and 0" in text(marks)
    assert compare_marks(of_values(x=1.0), of_values(z=1.0)).compared == 0


# -- ranks -------------------------------------------------------------------------------------------------------------


def of_ranks(*values: object) -> RunMarks:
    """A run of several ranks that mark these values."""
    ranks: list[Sequence[Mark]] = []
    for value in values:
        with recorded() as recording:
            traincheck.mark("x", value)
        ranks.append(recording.marks)
    return marks_of_ranks(ranks)


def test_ranks_hold_a_value_or_shards_of_it() -> None:
    whole = of_values(x=WHOLE)
    assert compare_marks(whole, of_ranks(WHOLE, WHOLE)).same == 1
    assert compare_marks(whole, of_ranks(*WHOLE.chunk(2))).first is None
    assert compare_marks(whole, of_ranks(*(1.5 * WHOLE).chunk(2))).first is not None


def test_what_all_ranks_hold_is_whole() -> None:
    """A gradient that all ranks have and that is too large by their number is no sum of other ones."""
    double = of_ranks(2 * WHOLE, 2 * WHOLE)
    for right in (of_values(x=WHOLE), of_ranks(WHOLE, WHOLE)):
        marks = compare_marks(right, double)
        assert marks.first is not None and marks.first.factor == pytest.approx(2.0)
    assert compare_marks(of_values(x=256), of_ranks(128, 128)).first is None, "a count is the sum of equal counts"


def test_the_parts_of_equal_ranks_are_compared_one_by_one() -> None:
    a = of_ranks(*WHOLE.chunk(2))
    changed = WHOLE.clone()
    changed[3, 1] += 0.5
    marks = compare_marks(a, of_ranks(*changed.chunk(2)))
    assert marks.first is not None and marks.first.elements is not None and marks.first.elements.rank == 1
    assert "(1, 1) of rank 1" in text(marks)
    assert compare_marks(a, of_ranks(*(2 * WHOLE).chunk(2))).first is not None


def test_marks_of_stages_are_in_the_order_of_steps() -> None:
    def mark(name: str, occurrence: int, step: int) -> Mark:
        value: MarkedValue = of_values(x=1.0).values["x", 1]
        return Mark(name, occurrence, step, "", "float32", value.sketch)

    stages = [[mark("in", 1, 1), mark("in", 2, 2)], [mark("out", 1, 1), mark("eval", 1, 0), mark("out", 2, 2)]]
    keys = [("in", 1), ("out", 1), ("eval", 1), ("in", 2), ("out", 2)]
    assert list(marks_of_ranks(stages).values) == keys
