"""Before an update, callbacks, snapshots and the stop run in this order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import traincheck
from traincheck.errors import StopTraining
from traincheck.runtime import callbacks
from traincheck.runtime.before_update import BeforeUpdate
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.finding import Finding

FINDING = Finding("error", 4, 0, "Gradients stay", "", None, (), "", "", (), ("ab",), 4, 1)


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    kept = list(callbacks._on_violation), list(callbacks._before_stop)
    yield
    callbacks._on_violation[:], callbacks._before_stop[:] = kept


class Update:
    """Before each update of a program; `log` says what happened."""

    def __init__(self, callback: str = "") -> None:
        self.log: list[str] = []
        self.step = 7
        self.before = BeforeUpdate(
            lambda: self.step, lambda: self.log.append("snapshot"), lambda: self.log.append("reported"), callback
        )


def test_an_update_without_requests_does_nothing() -> None:
    update = Update()
    update.before()
    assert update.log == []


def test_snapshots_callbacks_and_the_stop_run_in_order() -> None:
    update = Update()
    traincheck.on_violation(lambda finding: update.log.append(f"finding: {finding.title}"))
    traincheck.before_stop(lambda: update.log.append("save"))
    update.before.stop(StopRequest(title="enough", step=4))
    update.before.report(FINDING)
    update.before.request_snapshot()
    with pytest.raises(StopTraining, match="after step 4: enough"):
        update.before()
    assert update.log == ["snapshot", "finding: Gradients stay", "save", "reported"]


def test_each_finding_and_snapshot_is_reported_once() -> None:
    update = Update()
    traincheck.on_violation(lambda finding: update.log.append("finding"))
    update.before.report(FINDING)
    update.before.request_snapshot()
    update.before()
    update.before()
    assert update.log == ["snapshot", "finding"]


def test_an_error_in_a_callback_is_reported_and_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    update = Update()

    @traincheck.on_violation
    def broken(finding: object) -> None:
        raise LookupError("mine")

    traincheck.on_violation(lambda finding: update.log.append("second"))
    update.before.report(FINDING)
    update.before()
    assert update.log == ["second"]
    assert "broken, called for a finding, raised LookupError: mine" in capsys.readouterr().err


def test_a_callback_may_stop_the_training() -> None:
    update = Update()

    def stops(finding: Finding) -> None:
        raise StopTraining(f"that is enough: {finding.title}")

    traincheck.on_violation(stops)
    traincheck.before_stop(lambda: update.log.append("save"))
    update.before.report(FINDING)
    with pytest.raises(StopTraining, match="stopped the training on request: that is enough: Gradients stay"):
        update.before()
    assert update.log == ["save", "reported"]


def test_an_error_before_the_stop_does_not_prevent_it(capsys: pytest.CaptureFixture[str]) -> None:
    update = Update()

    @traincheck.before_stop
    def save() -> None:
        raise OSError("disk full")

    update.before.stop(StopRequest(title="enough"))
    with pytest.raises(StopTraining, match="on request: enough"):
        update.before()
    assert "save, called before the stop, raised OSError: disk full" in capsys.readouterr().err


def test_a_stop_may_be_for_a_later_step() -> None:
    update = Update()
    update.before.stop(StopRequest(title="enough", at=9))
    update.before()
    update.step = 8
    update.before()
    update.step = 9
    with pytest.raises(StopTraining):
        update.before()


def test_a_function_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Update("traincheck.runtime.callbacks:named")
    monkeypatch.setattr(callbacks, "named", lambda finding: update.log.append(finding.title), raising=False)
    update.before.report(FINDING)
    update.before()
    assert update.log == ["Gradients stay"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [("no.such.module:function", "No module named"), ("json:nothing", "AttributeError"), ("json:__doc__", "it is str")],
)
def test_an_unknown_callback_is_reported_before_the_first_update(
    target: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    update = Update(target)
    update.before()
    stderr = capsys.readouterr().err
    assert f"--on-violation {target} cannot be used, findings are only reported" in stderr and reason in stderr
    update.before.report(FINDING)
    update.before()


def test_registering_returns_the_function_and_is_inert_unobserved() -> None:
    def function(finding: object) -> None:
        raise AssertionError

    assert traincheck.on_violation(function) is function
    assert traincheck.on_violation(function) is function
    assert callbacks._on_violation.count(function) == 1
    assert traincheck.before_stop(print) is print


def test_a_program_ends_before_each_update_after_the_last_step() -> None:
    step = 3
    before = BeforeUpdate(lambda: step, lambda: None, lambda: None, last_step=4)
    before()
    step = 4
    before()
    step = 5
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            before()
        assert end.value.code == 0 and not isinstance(end.value, Exception)
