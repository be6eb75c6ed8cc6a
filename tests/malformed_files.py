"""Malformed files for the tests of readers: one valid file of each kind, and its mutations.

`READERS` names each reader with the file that it reads and what a command goes on to do with it. Every input follows
from the name of its reader and a number, so that one that makes trouble can be made again:
`strangers.again(folder, "report", 4711)`.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from rich.console import Console

from fake_ranks import learned, updates
from recorded_runs import training
from sample_rules import make_invariant
from sample_studies import study
from traincheck.checking.engine import Engine, Outcome
from traincheck.checking.finding_details import finding_details
from traincheck.checking.offline import check_folder
from traincheck.checking.outcome_files import (
    read_comparison,
    read_outcome,
    save_comparison,
    save_followed,
    save_outcome,
)
from traincheck.checking.rank_comparison import compare_recorded
from traincheck.checking.rank_engine import RankComparison
from traincheck.checking.results import result_of_live_run, verdicts_of_run
from traincheck.checking.run_status import Watcher
from traincheck.cli.commands import explain
from traincheck.cli.sdc.study import tables
from traincheck.config import load
from traincheck.errors import InputError, TrainCheckError
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.journal import Entry, Journal
from traincheck.inference.tally_files import is_tally_file, read_tallies, write_tallies
from traincheck.inference.tally_runs import tally_folder
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.invariants.book_format import InvariantLine
from traincheck.invariants.diff import compare
from traincheck.reporting.alerts.alert import of_end, of_finding
from traincheck.reporting.book_view import book_data, book_view
from traincheck.reporting.html.sink import html_of
from traincheck.reporting.json_report import json_of, read_json, write_json
from traincheck.reporting.metrics.table import METRICS
from traincheck.reporting.status_views import PlainLines
from traincheck.reporting.study.page import study_page
from traincheck.reporting.terminal import TerminalSink, finding_block
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.ranks.rank_protocol import WindowValues
from traincheck.runtime.ranks.rank_protocol import _decoder as decoder_of_lines
from traincheck.sdc.study.study_file import differs, read_study, write_study
from traincheck.testing.readable_traces import from_text
from traincheck.trace.control_file import (
    Answer,
    Control,
    Request,
    add_finding,
    change_control,
    read_answers,
    read_control,
    write_answer,
)
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE, DIGESTS
from traincheck.trace.reader import count_windows, follow_windows, last_step, read_windows, removed_steps
from traincheck.trace.run_notes import Manifest, ProcessNote, StopRequest
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import Invariant, identity

TENSORS = """
window setup
window train step=1
  module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.fc context={"training":true,"outermost":true}
    tensor input float32[4,8] storage=~1 fingerprint=3 facts={"finite":true,"norm":1.5}
    tensor result float32[4,2] requires_grad storage=~2
    reading module.training Net true
    reading parameter.data Net.fc.weight 123 role=saved context={"requires_grad":true}
  function torch.nn.functional.cross_entropy args={"reduction":"mean","ignore_index":-100} result={"dtype":"float32"}
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD site=train.py:8:main
    change Net.fc.weight parameter.data some -> some changed owner=SGD fingerprint=7
    reading hyperparameter.lr SGD.param_groups[0] 0.1
window end step=1
"""


@dataclass(frozen=True)
class Reader:
    """A kind of file, where it lies in a run folder, and what is done with it. What it mangles has a certain form."""

    name: str
    file: str
    use: Callable[[Path, Path], object]
    form: str = "json"


Mangled = Callable[[random.Random, bytes], bytes]


# -- whole files -------------------------------------------------------------------------------------------------------


def build(folder: Path, report: Report) -> Path:
    """Create a run folder with a file of each kind, and a book, a journal, tallies and options next to it."""
    rules = (*learned().invariants[:40], make_invariant(), make_invariant(sentence="[red]x[/]", relation="Other"))
    book = Book(tuple({rule.id: rule for rule in rules}.values()))
    run = RunFolder.create(
        folder,
        Manifest(mode="run", argv=("train.py", "--lr", "1"), script="train.py", started="2026-01-02T03:04:05+00:00"),
    )
    write_book(book, folder / BOOK_FILE)
    windows: dict[int, list[Window]] = {0: updates(0, 4), 1: updates(1, 4, differs_from=2)}
    for rank, own_windows in windows.items():
        for prefix in ("events", DIGESTS):
            with TraceWriter(folder, rank, 10 + rank, prefix) as writer:
                later = (replace(window, rank=rank, step=window.step + 4) for window in training(2))
                for window in (*own_windows, *later):
                    writer.write(window)
        note = ProcessNote(
            rank=rank,
            process=10 + rank,
            world_size=2,
            job="job",
            windows=6,
            steps=6,
            watched=6,
            seconds=2.0,
            cost={"trace": 0.1},
            background={"trace": 0.1},
            sent={"bytes": 4},
            full=((1, 2),),
            not_observed=("functions: RuntimeError: x",),
            ended=bool(rank),
        )
        run.write_note(note)
        write_answer(folder, Answer(rank=rank, process=10 + rank, host="here", serial=1, snapshots=("../x",)))
        save_outcome(folder, _outcome(book, own_windows, rank))
    compared = compare_recorded(run, [book.invariants])[0][0]
    assert compared.outcome.violations
    save_comparison(folder, 10, compared)
    save_followed(folder, 0, RankComparison(compared.outcome, ("x",), "job"))
    write_json(report, folder / "report.json")
    change_control(folder, lambda state: add_finding(state, report.findings[0]))
    control = Control(
        muted={"a": "b"}, off=("functions",), look=Request(number=1, steps=2), stop=StopRequest(title="t")
    )
    change_control(folder, lambda state: msgspec.structs.replace(control, findings=state.findings))
    Settings(str(folder), "run", books=(str(folder / BOOK_FILE),)).write(folder / "session.json")
    with TraceWriter(folder / "..", 7, 7, folder.name) as writer:  # the windows of one process, with tensors
        for window in from_text(TENSORS):
            writer.write(window)
    (folder / ".." / f"{folder.name}-7-7.arrows").rename(folder / "some.arrows")
    tally = tally_folder(folder)
    write_tallies([tally], folder / "tallies.gz")
    _, journal = select_rules([tally])
    journal.entries = journal.entries[:20]
    journal.add(Entry("R", "a sentence", "always", "kept", "why", 1, 1, 1, 1))
    journal.write(folder / "journal.jsonl")
    (folder / "pyproject.toml").write_text(
        '[tool.traincheck]\nbook = ["good.jsonl"]\nbudget = "1/3,first=2"\nverify-every = 3\nmetrics = 9100\n'
    )
    write_study(study(ranks=2, steps=3), folder / "study.json")
    (folder / "message").write_bytes(msgspec.msgpack.encode(WindowValues(3, windows[1][0])))
    return folder


def _outcome(book: Book, windows: Iterable[Window], rank: int) -> Outcome:
    engine = Engine(list(book.invariants), process=10 + rank)
    engine.outcome.rank = rank
    for window in windows:
        engine.feed(window)
    broken = Engine([make_invariant()], process=10 + rank)
    for window in from_text("window train step=3\n  lifecycle torch.optim.Optimizer.step site=train.py:3:main\n"):
        engine.outcome.violations += broken.feed(window)
    return engine.outcome


# -- what is done with them --------------------------------------------------------------------------------------------


def _show(report: Report, verdicts: Any = (), folder: Path | None = None) -> None:
    shown = finding_details(folder, report, [rule for rule, _ in verdicts]) if folder is not None else ()
    for example in shown:
        assert not re.match(r"\w+(Error|Exception):", example.note), (
            example.note
        )  # told with the page, and a fault of ours
    html_of(report, verdicts, shown)
    json_of(report)
    TerminalSink(Console(file=io.StringIO(), width=100)).close(report)
    for finding in report.findings:
        finding_block(finding)


def _book(path: Path, folder: Path) -> None:
    book = read_book(path)
    Console(file=io.StringIO()).print(book_view(book.invariants))
    json.dumps(book_data(book.invariants))
    for rule in book.invariants[:3]:
        list(explain.meaning(rule))
        explain.facts_of(rule)
    compare(book, book)


def _report(path: Path, folder: Path) -> None:
    _show(read_json(path), verdicts_of_run(folder), folder)


def _outcomes(path: Path, folder: Path) -> None:
    read_outcome(path, read_book(folder / BOOK_FILE))


def _of_ranks(path: Path, folder: Path) -> None:
    read_comparison(path, read_book(folder / BOOK_FILE))


def _whole(path: Path, folder: Path) -> None:
    checked = check_folder(folder, read_book(folder / BOOK_FILE))
    _show(checked.report, checked.verdicts, folder)


def _gathered(path: Path, folder: Path) -> None:
    checked = result_of_live_run(folder, read_book(folder / BOOK_FILE))
    _show(checked.report, checked.verdicts, folder)


def _watched(path: Path, folder: Path) -> None:
    watcher = Watcher(folder)
    findings, status = watcher.look()
    PlainLines(Console(file=io.StringIO())).look(findings, status)
    for metric in METRICS:
        list(metric.samples(status))
    of_end(status).encoded()
    for finding in findings:
        of_finding(finding, status).encoded()
    checked = watcher.report()
    if checked is not None:
        _show(checked.report)


def _notes(path: Path, folder: Path) -> None:
    run = RunFolder.open(folder)
    _ = (run.manifest, run.notes(), run.jobs(), run.stop_request(), run.size)
    run.trained_as(0, 1)


def _control(path: Path, folder: Path) -> None:
    read_control(folder)
    read_answers(folder)


def _windows(path: Path, folder: Path) -> None:
    count_windows(path)
    last_step(path)
    removed_steps(path)
    engine = Engine(_rules())
    for window in read_windows(path):
        engine.feed(window)


@cache
def _rules() -> list[Invariant]:
    return list(learned().invariants[:40])


def _followed(path: Path, folder: Path) -> None:
    list(follow_windows(path, lambda: True))


def _learned(path: Path, folder: Path) -> None:
    select_rules([tally_folder(folder)])


def _tallies(path: Path, folder: Path) -> None:
    is_tally_file(path)
    select_rules(read_tallies(path))


def _journal(path: Path, folder: Path) -> None:
    journal = Journal.read(path)
    journal.find("a sentence of gradients")
    list(map(str, journal.entries))


def _options(path: Path, folder: Path) -> None:
    load({}, {}, folder)


def _study(path: Path, folder: Path) -> None:
    study = read_study(path)
    study_page(study, differs(study)).encode("utf-8", "backslashreplace")
    list(tables(study))


def _message(path: Path, folder: Path) -> None:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoder_of_lines.decode(path.read_bytes())


EVENTS = "events-0-10.arrows"
READERS = (
    Reader("book", BOOK_FILE, _book, "lines"),
    Reader("book of other rules", BOOK_FILE, _book, "rules"),
    Reader("run with another book", BOOK_FILE, _whole, "rules"),
    Reader("report", "report.json", _report),
    Reader("manifest", "run.json", _notes),
    Reader("note", "process-0-10.json", _notes),
    Reader("control", "control.json", _control),
    Reader("answer", "controlled-1-11.json", _control),
    Reader("outcome", "live-0-10.json", _outcomes),
    Reader("of ranks", "ranks-10.json", _of_ranks),
    Reader("settings", "session.json", lambda path, folder: Settings.read(path)),
    Reader("journal", "journal.jsonl", _journal, "lines"),
    Reader("tallies", "tallies.gz", _tallies, "gzip"),
    Reader("options", "pyproject.toml", _options, "bytes"),
    Reader("message", "message", _message, "msgpack"),
    Reader("study", "study.json", _study),
    Reader("events", "some.arrows", _windows, "bytes"),
    Reader("events followed", "some.arrows", _followed, "bytes"),
    Reader("windows", "some.arrows", _windows, "windows"),
    Reader("run with a note", "process-0-10.json", _whole),
    Reader("run with events", EVENTS, _whole, "bytes"),
    Reader("run with windows", EVENTS, _whole, "windows"),
    Reader("run with a manifest", "run.json", _whole),
    Reader("gathered", "live-0-10.json", _gathered),
    Reader("gathered of ranks", "ranks-10.json", _gathered),
    Reader("watched note", "process-1-11.json", _watched),
    Reader("watched manifest", "run.json", _watched),
    Reader("watched outcome", "live-1-11.json", _watched),
    Reader("watched of ranks", "followed-0.json", _watched),
    Reader("learned", EVENTS, _learned, "windows"),
)
WHOLE = [reader for reader in READERS if reader.use in (_whole, _gathered, _watched, _learned)]
"""Those that read a folder with all that is in it, which takes some milliseconds."""
BY_NAME = {reader.name: reader for reader in READERS}


# -- mangling ----------------------------------------------------------------------------------------------------------

TEXTS = (
    "",
    "x",
    "../../outside",
    "/etc/passwd",
    "~",
    "<script>alert(1)</script>",
    "[red]x[/red]",
    "\x1b]0;title\x07\x1b[31m",
    "\x9b31m",
    "\u202egnp.exe",
    "\x00",
    "a:b:c",
    "a:1:b",
    ":::",
    "{{7*7}}",
    "%s%n",
    "nan",
    "NaN",
    "x" * 5000,
    "\udcff",
    "1e999",
    "__import__('os').system('touch outside')",
    "float32[4,8]",
    "parameter.data",
    "train",
)
NUMBERS = (0, 1, -1, 2, 255, 65_536, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))


_WORDS = ("torch.Tensor.backward", "module.batch", "hyperparameter.lr", "differs on ranks", "all distinct", "messages")


def _evil(generator: random.Random) -> Any:
    """A value that is hardly ever right."""
    return generator.choice(
        (
            lambda: generator.choice(TEXTS),
            lambda: generator.choice(NUMBERS),
            lambda: generator.choice(FLOATS),
            lambda: generator.choice((None, True, False, [], {}, [[]], {"": {}}, {"float": "x"}, {"float": 1})),
            lambda: [generator.choice(TEXTS)] * generator.choice((1, 2, 50)),
            lambda: DEEPER,
            lambda: {generator.choice(TEXTS): generator.choice(NUMBERS)},
        )
    )()


DEEPER = "deeper and deeper"
"""Stands for a list in a list in a list, until it is written."""
LEVELS = 20_000


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:30]):
            yield from _places(item, (*at, index))


def mangled_value(generator: random.Random, value: Any) -> Any:
    """Plain data with one to three places altered."""
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        at = generator.choice(places)
        if not at:
            value = _evil(generator) if generator.random() < 0.3 else value
            continue
        inside = value
        for key in at[:-1]:
            inside = inside[key]
        how = generator.random()
        if how < 0.6:
            inside[at[-1]] = _evil(generator)
        elif how < 0.7:
            del inside[at[-1]]
        elif how < 0.8 and isinstance(inside, list):
            inside *= generator.choice((2, 50))
        elif how < 0.9 and isinstance(inside, dict):
            inside[generator.choice(TEXTS)] = _evil(generator)
        else:
            other: Any = value
            for key in generator.choice(places):
                other = other[key] if isinstance(other, (dict, list)) and _holds(other, key) else other
            inside[at[-1]] = json.loads(json.dumps(other))
    return value


def _holds(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else isinstance(key, int) and key < len(container)


def _json(value: Any) -> bytes:
    deep = "[" * LEVELS + "]" * LEVELS
    return json.dumps(value).replace(f'"{DEEPER}"', deep).encode()


def mangled_bytes(generator: random.Random, data: bytes) -> bytes:
    """Bytes altered, left out, put in, torn, or spliced."""
    mangled = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 4, 16))):
        at = generator.randrange(len(mangled) + 1)
        some = generator.choice((1, 4, 8, 64))
        how = generator.randrange(8)
        if how <= 1 and mangled:
            mangled[at % len(mangled)] ^= 1 << generator.randrange(8)
        elif how == 2:
            mangled[at : at + some] = generator.randbytes(some)
        elif how == 3:
            del mangled[at : at + generator.choice((1, 8, len(mangled)))]
        elif how == 4:
            mangled[at:at] = generator.choice((b"\x00", b"\xff", b"-", b"9")) * generator.choice((1, 8, 1000))
        elif how == 5:
            mangled[at:at] = mangled[generator.randrange(len(mangled) + 1) :][:some]
        elif how == 6:
            size = generator.choice((1, 2, 4, 8))
            number = generator.choice((0, 1, -1, 127, 2**15, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**40))
            mangled[at : at + size] = (number % (1 << (8 * size))).to_bytes(size, "little")
        else:
            mangled[at : at + some] = bytes(some)
    return bytes(mangled)


def mangled_json(generator: random.Random, data: bytes) -> bytes:
    """A JSON document with other values in it."""
    return _json(mangled_value(generator, json.loads(data)))


def mangled_lines(generator: random.Random, data: bytes) -> bytes:
    """JSON lines, one of them with other values."""
    lines = data.split(b"\n")
    at = generator.randrange(max(len(lines) - 1, 1))
    if generator.random() < 0.2:
        lines[at:at] = lines[at : at + 1]
    else:
        lines[at] = mangled_json(generator, lines[at])
    return b"\n".join(lines)


def mangled_rules(generator: random.Random, data: bytes) -> bytes:
    """A book whose rules say something else, with ids that fit."""
    header, *lines = data.splitlines()
    for at in generator.sample(range(len(lines)), 3):
        entry = json.loads(lines[at])
        part = generator.choice(
            ("subject", "property", "precondition", "relation", "experience", "severity", "sentence")
        )
        if part in ("subject", "property"):
            inside = entry[part]
            inside[generator.choice(list(inside))] = generator.choice((*TEXTS, "ranks", "call", *_WORDS))
        elif part in ("precondition", "experience"):
            entry[part] = [{"fact": "grads", "is": generator.choice((*TEXTS, *NUMBERS[:10], True))}]
        else:
            entry[part] = generator.choice(
                ("EventContain", "Periodic", "APIArg", "APIOutput", "Consistent", "notice", "x")
            )
        try:
            rule = msgspec.json.decode(json.dumps(entry), type=InvariantLine).invariant()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        clauses = rule.precondition
        entry["id"] = identity(rule.relation, rule.subject, rule.property, clauses, rule.program)
        lines[at] = json.dumps(entry).encode()
    return b"\n".join([header, *lines])


def mangled_gzip(generator: random.Random, data: bytes) -> bytes:
    """Return the text of a packed, mutated and repacked file."""
    return gzip.compress(mangled_lines(generator, gzip.decompress(data)), 1)


def mangled_msgpack(generator: random.Random, data: bytes) -> bytes:
    """A message with other values in it."""
    with suppress(OverflowError, TypeError, ValueError, RecursionError):
        packed = msgspec.msgpack.encode(mangled_value(generator, msgspec.msgpack.decode(data)))
        return packed.replace(msgspec.msgpack.encode(DEEPER), b"\x91" * LEVELS + b"\xc0")
    return data[:-1]


def mangled_windows(generator: random.Random, data: bytes) -> bytes:
    """Windows that the writer accepts but no source records: other names, positions and values."""
    here = _SCRATCH / "scratch.arrows"
    here.write_bytes(data)
    windows = list(read_windows(here))
    mangled = [_mangled_window(generator, window) for window in windows]
    if generator.random() < 0.2:
        generator.shuffle(mangled)
    path = _SCRATCH / "scratch-0-0.arrows"
    path.unlink(missing_ok=True)
    unwritable = (TrainCheckError, OverflowError, TypeError, ValueError, LookupError, struct.error, pa.ArrowException)
    with suppress(*unwritable), TraceWriter(_SCRATCH, 0, 0, "scratch") as writer:
        for window in mangled:
            writer.write(window)
    return path.read_bytes() if path.exists() else data


_SCRATCH = Path()


def _mangled_window(generator: random.Random, window: Window) -> Window:
    events = {name: list(getattr(window, name)) for name in ("calls", "changes", "readings")}
    for _ in range(generator.choice((0, 1, 1, 3))):
        name = generator.choice([name for name in events if events[name]] or ["calls"])
        if not events[name]:
            continue
        at = generator.randrange(len(events[name]))
        field = generator.choice(events[name][at]._fields)
        new = _fitting(generator, getattr(events[name][at], field))
        events[name][at] = events[name][at]._replace(**{field: new})
        if generator.random() < 0.2:
            events[name] = events[name] * 2
    others: dict[str, Any] = {}
    if generator.random() < 0.2:
        others["step"] = generator.choice((-1, 0, 10, 2**62))
    if generator.random() < 0.1:
        others["stage"] = generator.choice(TEXTS[:-4])
    return replace(window, **{name: tuple(chosen) for name, chosen in events.items()}, **others)


def _fitting(generator: random.Random, old: Any) -> Any:
    """A value of the type of `old`."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, str):
        return generator.choice(TEXTS)
    if isinstance(old, int):
        return generator.choice((-1, 0, 1, 5, old, 2**31 - 1, 2**62))
    if isinstance(old, tuple) and old and isinstance(old[0], str):
        return generator.choice(((), ("",), ("x", "torch.optim.Optimizer.step"), (generator.choice(TEXTS),)))
    if isinstance(old, tuple) and (not old or isinstance(old[0][0], str)):
        names = [name for name, _ in old] if old and len(old[0]) == 2 else []
        name = generator.choice([*names, "grads", "finite", "within", "len(x)", "value", generator.choice(TEXTS)])
        value = generator.choice((*TEXTS, *NUMBERS[:10], *FLOATS, None, True, False))
        return tuple(sorted({**(dict(old) if names else {}), name: value}.items()))
    return old


MANGLING: dict[str, tuple[Mangled, ...]] = {
    "bytes": (mangled_bytes,),
    "json": (mangled_json, mangled_json, mangled_json, mangled_bytes),
    "lines": (mangled_lines, mangled_lines, mangled_lines, mangled_bytes),
    "rules": (mangled_rules,),
    "gzip": (mangled_gzip, mangled_gzip, mangled_gzip, mangled_bytes),
    "msgpack": (mangled_msgpack, mangled_bytes),
    "windows": (mangled_windows,),
}


# -- reading -----------------------------------------------------------------------------------------------------------


class Survey:
    """Hands mangled files to their readers; a file is put back as it was when its reader is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole = {reader.file: (folder / reader.file).read_bytes() for reader in READERS}
        self.refused: dict[str, int] = {}
        self.accepted: dict[str, int] = {}

    def read(self, reader: Reader, number: int) -> None:
        """Read the input of this number. Raises AssertionError where the reader did what it must not."""
        global _SCRATCH
        _SCRATCH = self.folder.parent
        path = self.folder / reader.file
        generator = random.Random(f"{reader.name} {number}")
        data = generator.choice(MANGLING[reader.form])(generator, self.whole[reader.file])
        path.write_bytes(data)
        try:
            reader.use(path, self.folder)
            self.accepted[reader.name] = self.accepted.get(reader.name, 0) + 1
        except InputError as error:
            self.refused[reader.name] = self.refused.get(reader.name, 0) + 1
            assert str(self.folder) in str(error), f"{reader.name} {number}: which file? {error}"
        except TrainCheckError:
            self.refused[reader.name] = self.refused.get(reader.name, 0) + 1
        except Exception as error:
            raise AssertionError(f"{reader.name} {number}: {type(error).__name__}: {error}") from error
        finally:
            path.write_bytes(self.whole[reader.file])


def again(folder: Path, name: str, number: int, report: Report) -> None:
    """Make an input again and read it, to see where the trouble is."""
    shutil.rmtree(folder, ignore_errors=True)
    Survey(build(folder, report)).read(BY_NAME[name], number)
