"""Alerts reach a webhook or a command once each, block nothing, and reveal no secret."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from alert_receivers import receiving
from fake_ranks import wait_for
from traincheck.reporting.alerts import alert_queue
from traincheck.reporting.alerts import command as commands
from traincheck.reporting.alerts.alert import Alert, of_end, of_finding, of_silence
from traincheck.reporting.alerts.alert_queue import AlertQueue, Undelivered
from traincheck.reporting.alerts.alerts import Alerts
from traincheck.reporting.alerts.command import Command
from traincheck.reporting.alerts.webhook import Webhook
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.run_status import ENDED, GOING, KILLED, SILENT, TRAINING, RankStatus, RunStatus

RANK = RankStatus(0, 7, "", TRAINING, 12, 13, 0, 3.0, 0.004, 1.0, 1.0)
STATUS = RunStatus("runs/today", GOING, "train.py", "run", rules=9, checked=4, ranks=(RANK, replace(RANK, rank=1)))


@pytest.fixture
def finding(some_report: Report) -> Finding:
    return some_report.findings[0]


def alert(number: int) -> Alert:
    return Alert(str(number), "finding", f"alert {number}", {})


def test_an_alert_is_text_for_people_and_data_for_programs(finding: Finding) -> None:
    alert = json.loads(of_finding(replace(finding, title="a <!channel> & \x1b[31m"), STATUS).encoded())
    assert alert["text"].splitlines()[0].startswith("TrainCheck ERROR at step 3 on rank 1: a &lt;!channel&gt; &amp; ")
    assert "\x1b" not in alert["text"] and "project/train.py:42" in alert["text"]
    assert (alert["kind"], alert["version"], alert["finding"]["variables"][0]) == ("finding", 1, "head.weight")
    assert alert["run"]["script"] == "train.py" and len(alert["id"]) == 16
    ids = {
        of_finding(variant, replace(STATUS, errors=errors)).id
        for variant in (finding, replace(finding, times=9))
        for errors in (1, 2)
    }
    assert len(ids) == 1 and ids != {of_finding(replace(finding, step=4), STATUS).id}
    silent = of_silence(replace(STATUS, ranks=(RANK, replace(RANK, rank=1, state=SILENT, silent=75.0))))
    assert "rank 1 has sent no heartbeat for 75 s" in silent.text
    assert "exit code 137" in of_end(replace(STATUS, state=ENDED, exit_code=137)).text
    assert "counts as killed" in of_end(replace(STATUS, state=KILLED)).text


def test_a_recovered_webhook_gets_every_alert_once() -> None:
    messages: list[str] = []
    with receiving() as receiver:
        receiver.answer = 500
        queue = AlertQueue(Webhook(receiver.url), messages.append, first_delay=0.01)
        for number in range(5):
            queue.put(alert(number))
        wait_for(lambda: len(receiver.attempts) > 5)
        receiver.answer = 200
        wait_for(lambda: len(receiver.taken) == 5)
        queue.close()
        assert sorted(alert["id"] for alert in receiver.taken) == ["0", "1", "2", "3", "4"]
        assert {headers["Idempotency-Key"] for headers in receiver.headers} == {"0", "1", "2", "3", "4"}
    assert (
        len(messages) == 2
        and "HTTP status 500; TrainCheck retries" in messages[0]
        and "accepts alerts again" in messages[1]
    )
    assert "secret" not in "".join(messages)


def test_a_hanging_webhook_does_not_block_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_queue, "ATTEMPT", 0.2)
    messages: list[str] = []
    with receiving() as receiver:
        receiver.hangs.set()
        queue = AlertQueue(Webhook(receiver.url), messages.append, first_delay=0.01)
        queue.put(alert(1))
        wait_for(lambda: len(receiver.attempts) > 1)
        receiver.hangs.clear()
        wait_for(lambda: receiver.taken)
        queue.close()
        assert [alert["id"] for alert in receiver.taken] == ["1"]
    assert "no answer in time" in messages[0]


def test_the_end_waits_briefly_and_reports_undelivered_alerts() -> None:
    messages: list[str] = []
    with receiving() as receiver:
        receiver.answer = 503
        queue = AlertQueue(Webhook(receiver.url), messages.append)
        queue.put(alert(1))
        wait_for(lambda: messages)
        queue.close(seconds=0.3)
        assert receiver.attempts and not receiver.taken
    assert (
        "1 alert could not be delivered to the webhook at http://127.0.0.1:" in messages[-1] and "503" in messages[-1]
    )


def test_a_webhook_that_recovers_by_the_end_gets_the_alerts() -> None:
    with receiving() as receiver:
        receiver.answer = 500
        queue = AlertQueue(Webhook(receiver.url), lambda message: None, first_delay=3600)
        queue.put(alert(1))
        wait_for(lambda: receiver.attempts)
        receiver.answer = 200
        queue.close(seconds=30)
        assert len(receiver.taken) == 1


def test_permanently_rejected_alerts_are_dropped_at_once() -> None:
    messages: list[str] = []
    with receiving() as receiver:
        receiver.answer = 404
        queue = AlertQueue(Webhook(receiver.url), messages.append)
        queue.put(alert(1))
        wait_for(lambda: messages)
        receiver.answer = 200
        queue.put(alert(2))
        wait_for(lambda: receiver.taken)
        queue.close()
        assert [alert["id"] for alert in receiver.attempts] == ["1", "2"]
    assert "dropped: it answered with HTTP status 404" in messages[0]


def test_alerts_beyond_the_limit_are_dropped_and_counted() -> None:
    messages: list[str] = []
    begun, go = threading.Event(), threading.Event()

    class Slow:
        name, finishes = "a slow one", False

        def deliver(self, alert: Alert, seconds: float) -> None:
            begun.set()
            go.wait(30)

    queue = AlertQueue(Slow(), messages.append)
    queue.put(alert(0))
    begun.wait(30)
    for number in range(1, alert_queue.MAX_WAITING + 7):
        queue.put(alert(number))  # none of which waits
    go.set()
    queue.close(seconds=30)
    assert messages == ["7 alerts could not be delivered to a slow one"]


def test_a_redirect_is_not_followed() -> None:
    with receiving() as receiver:
        receiver.answer = 302
        with pytest.raises(Undelivered) as raised:
            Webhook(receiver.url).deliver(alert(1), 5)
    assert raised.value.final and "302" in str(raised.value)


def test_unreachable_addresses_are_reported_without_the_address() -> None:
    with receiving() as receiver:
        gone = receiver.url
    for url in (gone, "https://no-such-host.invalid/secret"):
        with pytest.raises(Undelivered) as raised:
            Webhook(url).deliver(alert(1), 5)
        assert "secret" not in str(raised.value) and not raised.value.final and raised.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    ["", "hooks.example.com/s3cret", "ftp://example.com/s3cret", "https:///s3cret", "https://me:s3cret@example.com/",
     "https://example.com/s3 cret", "https://example.com:99999/s3cret", "https://[::1/s3cret", "https://e\u00e9.com/s3cret"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError) as raised:
        Webhook(url)
    assert "s3" not in str(raised.value) and str(raised.value).startswith("an address")


def python(tmp_path: Path, text: str) -> str:
    (tmp_path / "hook.py").write_text(text)
    return f"'{sys.executable}' '{tmp_path / 'hook.py'}' 'a $HOME; b'"


def test_a_command_finds_the_alert_on_its_standard_input_and_no_shell_is_involved(
    tmp_path: Path, finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import json, sys\njson.dump([json.load(sys.stdin), sys.argv[1:]], open('alert.json', 'w'))\n"
    monkeypatch.chdir(tmp_path)
    Command(python(tmp_path, text)).deliver(of_finding(finding, STATUS), 5)
    alert, words = json.loads((tmp_path / "alert.json").read_text())
    assert alert["finding"]["title"] == finding.title and words == ["a $HOME; b"]


def test_a_failing_command_is_reported_with_its_last_output(tmp_path: Path) -> None:
    text = "import sys\nsys.stderr.write('x' * 10**6 + ' no such channel')\nsys.exit(4)\n"
    with pytest.raises(Undelivered, match=r"exit code 4 .*no such channel") as raised:
        Command(python(tmp_path, text)).deliver(alert(1), 5)
    assert raised.value.final and len(str(raised.value)) < 300


def test_a_hanging_command_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[0] + ".pid", "w").write(str(child.pid))
child.wait()
"""
    hook = Command(python(tmp_path, text))
    monkeypatch.setattr(commands, "LIMIT", 5.0)
    with pytest.raises(Undelivered, match="longer than 5 s"):
        hook.deliver(alert(1), 5)
    child = int((tmp_path / "hook.py.pid").read_text())
    wait_for(lambda: not alive(child))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("text", ["", "  ", "'unfinished", "no-such-program-anywhere --now"])
def test_commands_that_cannot_run_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a command"):
        Command(text)


def test_a_running_command_at_the_end_does_not_count_as_undelivered(tmp_path: Path) -> None:
    messages: list[str] = []
    text = "import time\nopen(__file__ + '.begun', 'w')\ntime.sleep(2)\nopen(__file__ + '.done', 'w')\n"
    queue = AlertQueue(Command(python(tmp_path, text)), messages.append)
    queue.put(alert(1))
    wait_for((tmp_path / "hook.py.begun").exists)
    queue.close(seconds=0.05)
    assert messages == []
    wait_for((tmp_path / "hook.py.done").exists)


def test_each_finding_silence_and_end_gives_one_alert(some_report: Report) -> None:
    error, notice = some_report.findings
    for least, expected in (("error", 1), ("notice", 2)):
        with receiving() as receiver:
            alerts = Alerts([AlertQueue(Webhook(receiver.url), lambda message: None)], least)  # type: ignore[arg-type]
            alerts.look([error, notice], STATUS)
            silent = replace(STATUS, ranks=(RANK, replace(RANK, rank=1, state=SILENT, silent=61.0)))
            for status in (silent, silent, STATUS, silent, replace(STATUS, state=ENDED, exit_code=0)):
                alerts.look([], status)
            alerts.look([], replace(STATUS, state=ENDED, exit_code=0))
            alerts.close()
            kinds = [alert["kind"] for alert in receiver.taken]
            assert kinds == ["finding"] * expected + ["silent", "silent", "ended"]


def test_a_fault_of_a_channel_does_not_end_the_thread() -> None:
    messages: list[str] = []
    taken: list[str] = []

    class Odd:
        name, finishes = "an odd one", False

        def deliver(self, alert: Alert, seconds: float) -> None:
            if alert.id == "1":
                raise KeyError("secret")
            taken.append(alert.id)

    queue = AlertQueue(Odd(), messages.append)
    queue.put(alert(1))
    queue.put(alert(2))
    wait_for(lambda: taken)
    queue.close()
    assert "KeyError" in messages[0] and "secret" not in messages[0]
