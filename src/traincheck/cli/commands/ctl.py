"""`traincheck ctl`: change a run while it trains, without a restart."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck import plugins
from traincheck.cli import flags
from traincheck.cli.console import amount, columns, out, out_json, remark
from traincheck.config import checked_budget
from traincheck.errors import BadOption, InputError
from traincheck.options import OPTIONS
from traincheck.vocab.ranks import named_ranks

if TYPE_CHECKING:
    from traincheck.trace.control_file import Answer, Control
    from traincheck.trace.folder import RunFolder

EPILOG = """\b
Orders:
  status                show the orders, and which processes follow them since which step
  budget P%|1/K         watch as many steps as fit into P% of the time, or 1 of K steps; 0% is no limit
  mute ID --reason TEXT stop checking a rule (the first digits of the ID suffice); unmute ID checks it again
  source NAME off|on    switch a source off, and with it the rules that need it
  record [STEPS]        record the next steps in full
  snapshot              save parameters, gradients, buffers and optimizer state
  stop [--reason TEXT]  end the training before the next update, on all ranks at the same step

\b
Examples:
  traincheck ctl runs/big status
  traincheck ctl runs/big budget 1/50
  traincheck ctl runs/big mute 3f9a --reason "the new schedule pauses on purpose"
  traincheck ctl runs/big source functions off
  traincheck ctl runs/big record 10
  traincheck ctl runs/big stop --reason "the learning rate was wrong"

Exit codes: 0 all running processes have answered (or --wait 0), 1 some have not, 2 wrong usage.
"""

PAUSE = 0.1
DEFAULT_STEPS = 5


def command(
    run: flags.OneRunFolder,
    order: flags.Order = None,
    reason: flags.ReasonRequested = None,
    wait: flags.Wait = str(OPTIONS["wait"].default),
    as_json: flags.AsJson = False,
) -> None:
    """Change a run while it trains.

    The orders below set the watched steps, mutes and sources, record steps in full, or stop the run.
    """
    raise typer.Exit(ctl(run, order or ["status"], reason, wait, as_json))


def ctl(path: Path, order: Sequence[str], reason: str | None, wait: str, as_json: bool) -> int:
    """Write the order, wait for the answers, and print them; the exit code."""
    from traincheck.trace.control_file import change_control, read_control
    from traincheck.trace.folder import RunFolder

    seconds = _number("--wait", wait, least=0)
    folder = RunFolder.open(path)
    change = _change(folder, list(order), reason)
    if change is None:
        return _print_status(folder, read_control(folder.path), as_json)
    if folder.manifest.ended:
        raise BadOption("RUN", str(path), f"a run that has not ended; this one ended at {folder.manifest.ended}")
    control = change_control(folder.path, change)
    code = _wait_for(folder, control, float(seconds))
    if as_json:
        _print_status(folder, control, as_json)
    return code


# -- orders ----------------------------------------------------------------------------------------------------------

Change = Any
"""Makes the new state out of the present one: `Callable[[Control], Control]`."""


def _change(folder: RunFolder, order: list[str], reason: str | None) -> Callable[[Control], Control] | None:
    """The change that the order makes, None for `status`. Raises BadOption."""
    name, *words = order
    if name not in ORDERS:
        raise BadOption("ORDER", name, f"one of {', '.join(ORDERS)}")
    least, most, make = ORDERS[name]
    if not least <= len(words) <= most:
        expected = f"{least} words" if least == most else f"{least} to {most} words"
        raise BadOption("ORDER", " ".join(order), f"{name} with {expected} after it (see traincheck ctl --help)")
    if reason is not None and name not in ("mute", "stop"):
        raise BadOption("--reason", reason, "the order mute or stop")
    change: Callable[[Control], Control] | None = make(folder, words, (reason or "").strip())
    return change


def _status(folder: RunFolder, words: list[str], reason: str) -> None:
    return None


def _budget(folder: RunFolder, words: list[str], reason: str) -> Change:
    budget = checked_budget(words[0], "budget")
    if "," in words[0]:
        raise BadOption("budget", words[0], "P% or 1/K alone: the first steps are over")
    return _with(sample=budget.every, budget=budget.share)


def _mute(folder: RunFolder, words: list[str], reason: str) -> Change:
    if not reason:
        raise BadOption("--reason", reason, "a text that gives the reason, for later readers")
    rule = _rule(folder, words[0])
    line = " ".join(reason.split())
    return lambda control: _replaced(control, muted={**control.muted, rule: line})


def _unmute(folder: RunFolder, words: list[str], reason: str) -> Change:
    from traincheck.trace.control_file import read_control

    name, muted = words[0].lower(), read_control(folder.path).muted
    matches = [rule for rule in muted if rule.startswith(name)]
    if len(matches) != 1:
        raise BadOption("unmute", words[0], f"one of the muted rules: {', '.join(muted) or 'there are none'}")
    return lambda control: _replaced(
        control, muted={rule: reason for rule, reason in control.muted.items() if rule != matches[0]}
    )


def _rule(folder: RunFolder, name: str) -> str:
    from traincheck.invariants.book import read_book
    from traincheck.invariants.lookup import invariant_by_id
    from traincheck.trace.format import BOOK_FILE

    try:
        book = read_book(folder.path / BOOK_FILE)
    except InputError as error:
        raise BadOption("mute", name, f"a run that is checked against a book ({error})") from error
    return invariant_by_id(book, folder.path / BOOK_FILE, name).id


def _source(folder: RunFolder, words: list[str], reason: str) -> Change:
    name, how = words
    declarations = plugins.load(plugins.SOURCE_GROUP)
    if name not in declarations or not declarations[name].can_be_switched_off:
        switchable = ", ".join(
            declaration.name for declaration in declarations.values() if declaration.can_be_switched_off
        )
        required = ", ".join(declaration.name for declaration in declarations.values() if declaration.required)
        rest = f"; all others rest on {required}" if name in declarations and declarations[name].required else ""
        raise BadOption("source", name, f"one of {switchable}{rest}")
    if how not in ("on", "off"):
        raise BadOption("source", f"{name} {how}", "off or on")

    def switched(control: Control) -> Any:
        off = set(control.off) | {name} if how == "off" else set(control.off) - {name}
        return _replaced(control, off=tuple(sorted(off)))

    return switched


def _record(folder: RunFolder, words: list[str], reason: str) -> Change:
    steps = int(_number("record", words[0], least=1)) if words else DEFAULT_STEPS
    if folder.manifest.mode == "collect":
        raise BadOption("record", steps, "a checked run; this one is recorded in full anyway")
    return lambda control: _replaced(control, look=_replaced(control.look, number=control.look.number + 1, steps=steps))


def _snapshot(folder: RunFolder, words: list[str], reason: str) -> Change:
    return lambda control: _replaced(control, snapshot=_replaced(control.snapshot, number=control.snapshot.number + 1))


def _stop(folder: RunFolder, words: list[str], reason: str) -> Change:
    from traincheck.trace.control_file import stopped
    from traincheck.trace.run_notes import StopRequest

    return lambda control: stopped(control, StopRequest(title=reason or "by traincheck ctl"))


ORDERS: dict[str, tuple[int, int, Callable[[Any, list[str], str], Any]]] = {
    "status": (0, 0, _status),
    "budget": (1, 1, _budget),
    "mute": (1, 1, _mute),
    "unmute": (1, 1, _unmute),
    "source": (2, 2, _source),
    "record": (0, 1, _record),
    "snapshot": (0, 0, _snapshot),
    "stop": (0, 0, _stop),
}
"""The least and the most words after each order, and the function that makes its change."""


def _with(**changes: object) -> Change:
    return lambda control: _replaced(control, **changes)


def _replaced(control: Any, **changes: object) -> Any:
    from msgspec.structs import replace  # not needed for --help

    return replace(control, **changes)


def _number(option: str, word: str, *, least: int) -> float:
    if not word.isdecimal() or int(word) < least:
        raise BadOption(option, word, f"a whole number, {least} or more")
    return int(word)


# -- answers ---------------------------------------------------------------------------------------------------------


def _running(folder: RunFolder) -> list[Answer]:
    """The answers of the running processes. A process of another host runs until its answer says that it ended."""
    from traincheck.runtime.ranks.rank_info import is_running
    from traincheck.trace.control_file import read_answers

    here = platform.node()
    return [
        answer
        for answer in read_answers(folder.path)
        if not answer.ended and (answer.host != here or is_running(answer.process))
    ]


def _wait_for(folder: RunFolder, control: Control, seconds: float) -> int:
    """Wait until all running processes have carried out the order, and report it; the exit code."""
    deadline = time.monotonic() + seconds
    while True:
        running = _running(folder)
        late = [answer for answer in running if answer.serial < control.serial]
        over = bool(folder.manifest.ended)
        if (running and not late) or over or time.monotonic() >= deadline:
            break
        time.sleep(PAUSE)
    done = [answer for answer in running if answer.serial >= control.serial]
    for answer in done:
        for reason in answer.declined:
            remark(f"rank {answer.rank}, process {answer.process}: {reason}")
    if over:
        remark("the run has ended")
    elif not seconds:
        remark(f"order {control.serial} written, without waiting for answers")
    elif not running:
        remark("no process answers: none is observed so far, or they have ended; the order is kept")
        return 1
    elif late:
        waits = "; ".join(f"rank {answer.rank} waits {answer.waiting}" for answer in late if answer.waiting)
        remark(f"not done so far on {named_ranks({answer.rank for answer in late})}" + (f" ({waits})" if waits else ""))
        return 1
    else:
        _report_done([answer for answer in done if answer.training] or done)
    return 0


def _report_done(answers: list[Answer]) -> None:
    steps = sorted({answer.step for answer in answers})
    since = f"from step {steps[0]} on" if len(steps) == 1 else f"from steps {steps[0]} to {steps[-1]} on"
    remark(f"done by {len(answers)} {'process' if len(answers) == 1 else 'processes'} {since}")
    for answer in answers:
        if answer.waiting:
            remark(f"rank {answer.rank} waits {answer.waiting}")


def _print_status(folder: RunFolder, control: Control, as_json: bool) -> int:
    from msgspec import to_builtins

    from traincheck.trace.control_file import read_answers

    answers = read_answers(folder.path)
    alive = {(answer.rank, answer.process) for answer in _running(folder)}
    if as_json:
        rows = [{**to_builtins(answer), "running": (answer.rank, answer.process) in alive} for answer in answers]
        out_json({"asked": to_builtins(control), "answers": rows, "ended": folder.manifest.ended})
        return 0
    out(f"orders for {folder.path} (serial {control.serial}):")
    for line in columns(_orders(control) or [("none",)]):
        out(line)
    out("answers:" if answers else "no process has answered so far")
    for line in columns(
        [_answer_row(answer, control.serial, (answer.rank, answer.process) in alive) for answer in answers]
    ):
        out(line)
    if folder.manifest.ended:
        out(f"the run ended at {folder.manifest.ended}")
    return 0


def _orders(control: Control) -> list[tuple[str, str]]:
    rows = [("muted", f"{rule}: {reason}") for rule, reason in sorted(control.muted.items())]
    rows += [("source off", name) for name in control.off]
    if control.sample is not None and control.sample > 1:
        rows.append(("sample", f"1 of {control.sample} steps"))
    if control.budget:
        rows.append(("budget", f"{100 * control.budget:g} % of the time"))
    if control.look.number:
        rows.append(("record", f"{amount(control.look.steps, 'step')} in full ({amount(control.look.number, 'time')})"))
    if control.snapshot.number:
        rows.append(("snapshot", amount(control.snapshot.number, "time")))
    if control.stop is not None:
        rows.append(("stop", control.stop.title))
    return rows


def _answer_row(answer: Answer, serial: int, running: bool) -> list[str]:
    progress = f"serial {answer.serial} since step {answer.step}" if answer.training else f"serial {answer.serial}"
    state = "ended" if answer.ended else "running" if running else "gone"
    more = [answer.waiting and f"waits {answer.waiting}", *answer.declined]
    more += [f"steps {first}-{last} in full" for first, last in answer.full]
    more += answer.snapshots
    late = "behind" if running and answer.serial < serial else ""
    return [f"rank {answer.rank}", f"process {answer.process}", state, progress, "; ".join(filter(None, [late, *more]))]
