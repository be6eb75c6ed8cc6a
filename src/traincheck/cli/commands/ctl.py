"""`traincheck ctl`: ask something of a run while it trains, without a restart."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck.cli import flags
from traincheck.cli.console import amount, columns, out, out_json, remark
from traincheck.errors import BadOption, InputError
from traincheck.options import OPTIONS
from traincheck.vocab.availability import CORE, OTHERS
from traincheck.vocab.ranks import named_ranks

if TYPE_CHECKING:
    from traincheck.trace.control_file import Answer, Control
    from traincheck.trace.folder import RunFolder

EPILOG = """\b
Orders:
  status                what is asked, and which processes have done it since which step
  sample K              watch every K-th step
  budget P%             let watching take this share of the time of a step, 0% for any
  mute ID --reason TEXT judge a rule no more (ID: the first digits suffice); unmute ID
  source NAME off|on    switch off a source; the rules that rest on it are not judged
  look [STEPS]          look closer: record the next steps in full
  snapshot              write parameters, gradients, buffers and optimizer state
  stop [--reason TEXT]  end the training before the next update, all ranks before the same

\b
Examples:
  traincheck ctl runs/big status
  traincheck ctl runs/big sample 50
  traincheck ctl runs/big mute 3f9a --reason "the new schedule is meant to rest"
  traincheck ctl runs/big source functions off
  traincheck ctl runs/big look 10
  traincheck ctl runs/big stop --reason "the learning rate was wrong"

Exit codes: 0 all running processes have answered (or none was waited for), 1 not all have, 2 wrong usage.
"""

PAUSE = 0.1
DEFAULT_STEPS = 5


def command(
    run: flags.OneRunFolder,
    order: flags.Order = None,
    reason: flags.ReasonAsked = None,
    wait: flags.Wait = str(OPTIONS["wait"].default),
    as_json: flags.AsJson = False,
) -> None:
    """Ask something of a run while it trains.

    Which steps it watches, mutes, sources, a closer look, a stop: see the orders below.
    """
    raise typer.Exit(ctl(run, order or ["status"], reason, wait, as_json))


def ctl(path: Path, order: Sequence[str], reason: str | None, wait: str, as_json: bool) -> int:
    """Ask it, wait for the answers, and tell them; the exit code."""
    from traincheck.trace.control_file import change_control, read_control
    from traincheck.trace.folder import RunFolder

    seconds = _number("--wait", wait, least=0)
    folder = RunFolder.open(path)
    change = _change(folder, list(order), reason)
    if change is None:
        return _tell(folder, read_control(folder.path), as_json)
    if folder.manifest.ended:
        raise BadOption("RUN", str(path), f"a run that goes on; this one ended at {folder.manifest.ended}")
    asked = change_control(folder.path, change)
    code = _wait_for(folder, asked, float(seconds))
    if as_json:
        _tell(folder, asked, as_json)
    return code


# -- orders ----------------------------------------------------------------------------------------------------------

Change = Any
"""Makes the new state out of the present one: `Callable[[Control], Control]`."""


def _change(folder: RunFolder, order: list[str], reason: str | None) -> Callable[[Control], Control] | None:
    """What the order changes, None for `status`. Raises BadOption."""
    what, *words = order
    if what not in ORDERS:
        raise BadOption("ORDER", what, f"one of {', '.join(ORDERS)}")
    least, most, make = ORDERS[what]
    if not least <= len(words) <= most:
        expected = f"{least} words" if least == most else f"{least} to {most} words"
        raise BadOption("ORDER", " ".join(order), f"{what} with {expected} after it (see traincheck ctl --help)")
    if reason is not None and what not in ("mute", "stop"):
        raise BadOption("--reason", reason, "mute or stop to be asked")
    change: Callable[[Control], Control] | None = make(folder, words, (reason or "").strip())
    return change


def _status(folder: RunFolder, words: list[str], reason: str) -> None:
    return None


def _sample(folder: RunFolder, words: list[str], reason: str) -> Change:
    return _with(sample=int(_number("sample", words[0], least=1)))


def _budget(folder: RunFolder, words: list[str], reason: str) -> Change:
    try:
        percent = float(words[0].removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise BadOption("budget", words[0], "a share of the time from 0% (no limit) to less than 100%, such as 1%")
    return _with(budget=percent / 100)


def _mute(folder: RunFolder, words: list[str], reason: str) -> Change:
    if not reason:
        raise BadOption("--reason", reason, "a text that says why: nobody remembers it later")
    rule = _rule(folder, words[0])
    line = " ".join(reason.split())
    return lambda control: _replaced(control, muted={**control.muted, rule: line})


def _unmute(folder: RunFolder, words: list[str], reason: str) -> Change:
    from traincheck.trace.control_file import read_control

    name, muted = words[0].lower(), read_control(folder.path).muted
    found = [rule for rule in muted if rule.startswith(name)]
    if len(found) != 1:
        raise BadOption("unmute", words[0], f"one of the muted rules: {', '.join(muted) or 'there are none'}")
    return lambda control: _replaced(
        control, muted={rule: why for rule, why in control.muted.items() if rule != found[0]}
    )


def _rule(folder: RunFolder, name: str) -> str:
    from traincheck.invariants.book import read_book
    from traincheck.invariants.lookup import named
    from traincheck.trace.format import BOOK_FILE

    try:
        book = read_book(folder.path / BOOK_FILE)
    except InputError as error:
        raise BadOption("mute", name, f"a run that is checked against a book ({error})") from error
    return named(book, folder.path / BOOK_FILE, name).id


def _source(folder: RunFolder, words: list[str], reason: str) -> Change:
    name, how = words
    if name in CORE:
        raise BadOption("source", name, f"one of {', '.join(OTHERS)}; all others rest on {', '.join(CORE)}")
    if name not in OTHERS:
        raise BadOption("source", name, f"one of {', '.join(OTHERS)}")
    if how not in ("on", "off"):
        raise BadOption("source", f"{name} {how}", "off or on")

    def switched(control: Control) -> Any:
        off = set(control.off) | {name} if how == "off" else set(control.off) - {name}
        return _replaced(control, off=tuple(sorted(off)))

    return switched


def _look(folder: RunFolder, words: list[str], reason: str) -> Change:
    steps = int(_number("look", words[0], least=1)) if words else DEFAULT_STEPS
    if folder.manifest.mode == "collect":
        raise BadOption("look", steps, "a run that is checked; this one is recorded in full")
    return lambda control: _replaced(control, look=_replaced(control.look, number=control.look.number + 1, steps=steps))


def _snapshot(folder: RunFolder, words: list[str], reason: str) -> Change:
    return lambda control: _replaced(control, snapshot=_replaced(control.snapshot, number=control.snapshot.number + 1))


def _stop(folder: RunFolder, words: list[str], reason: str) -> Change:
    from traincheck.trace.control_file import stopped
    from traincheck.trace.run_notes import StopAsked

    return lambda control: stopped(control, StopAsked(title=reason or "by traincheck ctl"))


ORDERS: dict[str, tuple[int, int, Callable[[Any, list[str], str], Any]]] = {
    "status": (0, 0, _status),
    "sample": (1, 1, _sample),
    "budget": (1, 1, _budget),
    "mute": (1, 1, _mute),
    "unmute": (1, 1, _unmute),
    "source": (2, 2, _source),
    "look": (0, 1, _look),
    "snapshot": (0, 0, _snapshot),
    "stop": (0, 0, _stop),
}
"""How many words may follow each, and what makes the change."""


def _with(**changes: object) -> Change:
    return lambda control: _replaced(control, **changes)


def _replaced(control: Any, **changes: object) -> Any:
    from msgspec.structs import replace  # here, for it is not needed to show how the command is called

    return replace(control, **changes)


def _number(option: str, word: str, *, least: int) -> float:
    if not word.isdecimal() or int(word) < least:
        raise BadOption(option, word, f"a whole number, {least} or more")
    return int(word)


# -- answers ---------------------------------------------------------------------------------------------------------


def _running(folder: RunFolder) -> list[Answer]:
    """The processes that run, as far as this can be told: of another host one believes what it said last."""
    from traincheck.runtime.ranks.rank_info import is_running
    from traincheck.trace.control_file import read_answers

    here = platform.node()
    return [
        answer
        for answer in read_answers(folder.path)
        if not answer.ended and (answer.host != here or is_running(answer.process))
    ]


def _wait_for(folder: RunFolder, asked: Control, seconds: float) -> int:
    """Wait until all running processes have done what was asked, and say so; the exit code."""
    deadline = time.monotonic() + seconds
    while True:
        running = _running(folder)
        late = [answer for answer in running if answer.serial < asked.serial]
        over = bool(folder.manifest.ended)
        if (running and not late) or over or time.monotonic() >= deadline:
            break
        time.sleep(PAUSE)
    done = [answer for answer in running if answer.serial >= asked.serial]
    for answer in done:
        for why in answer.declined:
            remark(f"rank {answer.rank}, process {answer.process}: {why}")
    if over:
        remark("the run has ended")
    elif not seconds:
        remark(f"asked (serial {asked.serial}); nobody was waited for")
    elif not running:
        remark("nobody answers: no process of the run is observed so far, or they have gone; what was asked is kept")
        return 1
    elif late:
        waits = "; ".join(f"rank {one.rank} waits {one.waiting}" for one in late if one.waiting)
        remark(f"not done so far on {named_ranks({one.rank for one in late})}" + (f" ({waits})" if waits else ""))
        return 1
    else:
        trains = [answer for answer in done if answer.training] or done
        steps = sorted({answer.step for answer in trains})
        since = f"from step {steps[0]} on" if len(steps) == 1 else f"from steps {steps[0]} to {steps[-1]} on"
        remark(f"done by {amount(len(trains), 'process').replace('processs', 'processes')} {since}")
        for answer in trains:
            if answer.waiting:
                remark(f"rank {answer.rank} waits {answer.waiting}")
    return 0


def _tell(folder: RunFolder, control: Control, as_json: bool) -> int:
    from msgspec import to_builtins

    from traincheck.trace.control_file import read_answers

    answers = read_answers(folder.path)
    alive = {(answer.rank, answer.process) for answer in _running(folder)}
    if as_json:
        told = [{**to_builtins(one), "running": (one.rank, one.process) in alive} for one in answers]
        out_json({"asked": to_builtins(control), "answers": told, "ended": folder.manifest.ended})
        return 0
    out(f"asked of {folder.path} (serial {control.serial}):")
    for line in columns(_asked(control) or [("nothing",)]):
        out(line)
    out("answers:" if answers else "no process has answered so far")
    for line in columns([_answered(one, control.serial, (one.rank, one.process) in alive) for one in answers]):
        out(line)
    if folder.manifest.ended:
        out(f"the run ended at {folder.manifest.ended}")
    return 0


def _asked(control: Control) -> list[tuple[str, str]]:
    rows = [("muted", f"{rule}: {why}") for rule, why in sorted(control.muted.items())]
    rows += [("source off", name) for name in control.off]
    if control.sample is not None:
        rows.append(("sample", f"every {control.sample} steps"))
    if control.budget is not None:
        rows.append(("budget", f"{100 * control.budget:g} % of the time"))
    if control.look.number:
        rows.append(("look closer", f"{amount(control.look.steps, 'step')} (asked {control.look.number} times)"))
    if control.snapshot.number:
        rows.append(("snapshot", f"asked {control.snapshot.number} times"))
    if control.stop is not None:
        rows.append(("stop", control.stop.title))
    return rows


def _answered(answer: Answer, serial: int, running: bool) -> list[str]:
    how = f"serial {answer.serial} since step {answer.step}" if answer.training else f"serial {answer.serial}"
    state = "ended" if answer.ended else "running" if running else "gone"
    more = [answer.waiting and f"waits {answer.waiting}", *answer.declined]
    more += [f"steps {first}-{last} in full" for first, last in answer.full]
    more += answer.snapshots
    late = "behind" if running and answer.serial < serial else ""
    return [f"rank {answer.rank}", f"process {answer.process}", state, how, "; ".join(filter(None, [late, *more]))]
