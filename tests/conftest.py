"""Shared fixtures: gold files, and a small report and book for the tests of the sinks."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from sample_rules import STEP, make_invariant
from traincheck.vocab.finding import ENDED, KILLED, Cost, Counts, Divergence, Finding, RankState, Report, Site
from traincheck.vocab.invariant import Clause, Invariant, Support
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.verification import VerifiedComputation
from warm_commands import WarmProcess

# A shared machine is slow now and then; that is no fault of the code under test.
settings.register_profile("traincheck", deadline=None, max_examples=60)
settings.load_profile("traincheck")


# What a shell starts in the background ignores interrupts, and so would all programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-gold", action="store_true", help="take the actual output as the new gold files")
    parser.addoption("--cold", action="store_true", help="start each command by its command line, as users do")


def pytest_configure(config: pytest.Config) -> None:
    WarmProcess.cold = config.getoption("--cold")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker of xdist begin with slow tests and end with fast ones, which the others can take over."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        parts = [[item for item in items if bool(item.get_closest_marker("slow")) is slow] for slow in (True, False)]
        items[:] = [item for number in range(workers) for part in parts for item in share(part, number, workers)]


def share(part: list[pytest.Item], number: int, workers: int) -> list[pytest.Item]:
    """The tests with which a worker begins; those of one file stay together."""
    return part[len(part) * number // workers : len(part) * (number + 1) // workers]


@pytest.fixture
def gold(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`gold("name.txt", actual)` fails unless `name.txt` beside the test holds exactly `actual`.

    When it fails, the actual output lies in `name.txt.actual`, and the message has the command that accepts it.
    """

    def compare(name: str, actual: str) -> None:
        file = request.path.parent / name
        beside = file.with_name(file.name + ".actual")
        expected = file.read_text(encoding="utf-8") if file.exists() else None
        if request.config.getoption("--accept-gold"):
            file.write_text(actual, encoding="utf-8")
            expected = actual
        if expected == actual:
            beside.unlink(missing_ok=True)
            return
        beside.write_text(actual, encoding="utf-8")
        lines = difflib.unified_diff(
            (expected or "").splitlines(), actual.splitlines(), file.name, beside.name, "", "", 2, ""
        )
        where = request.path.relative_to(request.config.rootpath)
        pytest.fail(
            "\n".join([*lines, "", f"To accept the actual output: pytest --accept-gold {where}"]), pytrace=False
        )

    return compare


@pytest.fixture
def settled_again() -> Iterator[None]:
    """Restore nondeterministic torch settings after a screening or a study."""
    import torch  # most tests get along without

    algorithms, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    cudnn = torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic
    yield
    torch.use_deterministic_algorithms(algorithms)
    torch.set_num_threads(threads)
    cudnn.benchmark, cudnn.deterministic = flags


@pytest.fixture
def new_invariant() -> Callable[..., Invariant]:
    """Makes an invariant; every field may be given by name."""
    return make_invariant


@pytest.fixture
def some_invariants() -> tuple[Invariant, ...]:
    """Four invariants of two relations and two subjects; the last is muted."""
    return (
        make_invariant(clauses=(Clause("grads", "none", negated=True), Clause("stage", "train"))),
        make_invariant(
            Property("changes", "parameter.data"),
            (Clause("requires_grad", True),),
            f"A parameter that requires a gradient is changed by {STEP}.",
            subject=Subject(STEP, "parameter.data"),
        ),
        make_invariant(
            Property("preceded by", "torch.Tensor.backward"),
            sentence=f"Before each {STEP} there is a torch.Tensor.backward.",
            relation="APISequence",
        ),
        make_invariant(
            Property("followed by", "print"),
            sentence=f"After {STEP} the loss is printed.",
            relation="APISequence",
            support=Support(3, 3, 1, 1),
            severity="notice",
            scope="pipeline",
            mute="only this script prints",
        ),
    )


@pytest.fixture
def some_report(some_invariants: tuple[Invariant, ...]) -> Report:
    """A report with an error of rank 1 that has all fields, and a notice with as few as possible."""
    error = Finding(
        severity="error",
        step=3,
        rank=1,
        title="The optimizer changes none of the model's parameters",
        cause="It was built before the model was wrapped or moved, and holds tensors that are no longer the model's.",
        site=Site("project/train.py", 42, "train_step"),
        variables=("head.weight", "head.bias", "blocks.0.weight", "blocks.1.weight", "blocks.2.weight"),
        expected=f"inside a call of {STEP}, at least one parameter of the model changes",
        observed="no parameter changed in 118 calls",
        advice=("the line that builds the optimizer: it comes after model.to(...)", "the parameters given to it"),
        invariants=tuple(invariant.id for invariant in some_invariants[:2]),
        last_step=120,
        times=118,
        ranks=(1,),
        diagnosis="optimizer-changes-nothing",
    )
    notice = Finding("notice", 7, 0, "The loss is printed no more", "", None, (), "a print", "none", (), (), 7, 1)
    counts = Counts(
        invariants=412,
        passed=390,
        violated=3,
        not_triggered=12,
        not_observed=7,
        muted=2,
        errors=1,
        notices=1,
        steps=120,
        windows=1300,
        windows_dropped=1,
        processes=2,
    )
    unseen = ("calls inside compiled regions", "calls inside compiled regions", "arguments of foreign kernels")
    run = {"script": "train.py", "argv": ["train.py", "--lr", "1e-3"], "versions": {"torch": "2.13.0"}, "ranks": 2}
    ranks = (
        RankState(0, "job", ENDED, 120, 650, 120, 118, 5, "gradients differ"),
        RankState(1, "job", KILLED, 118, 640, 118, 118, 5, "gradients differ"),
    )
    divergence = Divergence("job", 5, "gradients differ", (0, 1), 2)
    cost = Cost(
        120, 44, 640.0, {"optimizers": 2.56, "modules": 1.92, "functions": 1.28, "loaders": 0.064}, {"trace": 1.6}
    )
    verification = (
        VerifiedComputation("algorithm", "AdamW", 20),
        VerifiedComputation("derivative", "Net", 18, 2, ("block.attention: it draws random numbers",)),
        VerifiedComputation("padding", "Net", reasons=("the model takes no mask",)),
        VerifiedComputation("update", "AdamW", 20),
    )
    return Report(
        (error, notice),
        counts,
        unseen,
        run,
        ranks=ranks,
        divergences=(divergence,),
        cost=cost,
        verification=verification,
    )


@pytest.fixture
def clean_report() -> Report:
    """A run in which every invariant that came up held."""
    counts = Counts(invariants=10, passed=9, not_triggered=1, steps=1, windows=2, processes=1)
    return Report((), counts, (), {"script": "train.py"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
