"""The offline driver: check a recorded run folder. Torch is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from traincheck import plugins, redaction
from traincheck.checking.engine import Engine, Outcome, demand_of
from traincheck.checking.rank_comparison import compare_recorded
from traincheck.checking.rank_states import recorded_ranks
from traincheck.checking.results import Checked, conclude
from traincheck.errors import InputError, RunFolderEmpty
from traincheck.invariants.book import Book, read_book
from traincheck.invariants.selection import deployable
from traincheck.relations.base import needed
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.run_notes import ProcessNote, recorded_of, untrained_in
from traincheck.vocab.demand import COMPUTATION, EVERYTHING, NOTHING, Demand
from traincheck.vocab.finding import Cost
from traincheck.vocab.invariant import Invariant

Progress = Callable[[str, int, int], None]

INSIDE, REPLAYS = "compiled", "replays"
"""What notes say begins with these where only some rules are concerned: of what was compiled calls are told as a whole,
and nothing inside; of steps that could not be executed again the rest is told as ever."""

FROM_OUTSIDE = frozenset(
    (
        "torch.nn.Module.forward",
        "torch.optim.Optimizer.step",
        "torch.optim.Optimizer.zero_grad",
        "torch.optim.Optimizer.load_state_dict",
        "torch.optim.lr_scheduler.LRScheduler.step",
        "torch.autograd.backward",
    )
)
"""Calls that are told where a model, an optimizer or both are compiled: rules that need no others are judged then."""


def check_folder(folder: Path, book: Book, progress: Progress | None = None) -> Checked:
    """Check every process of a run folder against `book`.

    Raises RunFolderError for a folder that cannot be read or holds no window.
    """
    return check_folder_against(folder, [book], progress)[0]


def check_folder_against(folder: Path, books: Sequence[Book], progress: Progress | None = None) -> list[Checked]:
    """What `check_folder` says for each of `books`; the folder is read once."""
    run = RunFolder.open(folder)
    deployed = [deployable(book.invariants, run.manifest.script) for book in books]
    outcomes: list[list[Outcome]] = [[] for _ in books]
    files = len(run.event_files())
    for number, (_, windows) in enumerate(run.windows()):
        if progress:
            progress(f"checking {folder}", number, files)
        engines = [Engine(rules) for rules in deployed]
        for window in windows:
            for engine in engines:
                engine.outcome.rank, engine.outcome.process = window.rank, window.process
                engine.feed(window)
        for engine, found in zip(engines, outcomes, strict=True):
            if engine.outcome.windows:
                found.append(engine.outcome)
    if not all(outcomes):
        raise RunFolderEmpty(folder, "no window was recorded")
    compared = compare_recorded(run, deployed)
    notes, removed = run.notes(), run.removed()
    ranks = recorded_ranks(run, notes)
    return [
        conclude(
            book,
            rules,
            found,
            unobserved=unobserved(rules, recorded_demand(run), notes),
            not_observed=[*(reason for note in notes for reason in note.not_observed), *removed],
            dropped=sum(note.dropped for note in notes),
            run=run_facts(run, notes),
            compared=of_ranks,
            ranks=ranks,
            cost=cost_of(notes),
        )
        for book, rules, found, of_ranks in zip(books, deployed, outcomes, compared, strict=True)
    ]


def recorded_demand(run: RunFolder) -> Demand:
    """What was asked of the sources when the run was recorded."""
    if run.manifest.mode == "collect":
        return EVERYTHING
    book = run.path / BOOK_FILE
    try:
        return demand_of(deployable(read_book(book).invariants, run.manifest.script)) if book.is_file() else EVERYTHING
    except InputError:
        return EVERYTHING  # recorded by hand or by an older version: nothing says that less was asked for


def unobserved(rules: Sequence[Invariant], recorded: Demand, notes: Sequence[ProcessNote]) -> dict[str, str]:
    """The invariants that this run could not judge, with the reason."""
    missing = {reason.split(":", 1)[0] for note in notes for reason in note.not_observed}
    faulty = sorted(missing - {INSIDE, REPLAYS})
    found: dict[str, str] = {}
    if recorded.everything and not missing:
        return found
    relations = plugins.load("traincheck.relations", {rule.relation for rule in rules})
    for rule in rules:
        relation = relations.get(rule.relation)
        wanted = NOTHING if relation is None else needed(relation, rule.subject, rule.property)
        if not recorded.covers(wanted):
            found[rule.id] = "recorded selectively, for other invariants"
        elif faulty:
            found[rule.id] = f"a source did not observe: {', '.join(faulty)}"
        elif INSIDE in missing and not wanted.calls <= FROM_OUTSIDE:
            found[rule.id] = "what is compiled is not observed inside"
        elif REPLAYS in missing and wanted.takes_readings(COMPUTATION):
            found[rule.id] = "what it is about could not be executed again"
    return found


def cost_of(notes: Sequence[ProcessNote]) -> Cost | None:
    """What watching took in the processes that trained, None where none of them says so."""
    told = [note for note in notes if note.steps and note.seconds]
    if not told:
        return None
    longest = max(told, key=lambda note: note.steps)
    sources: Counter[str] = Counter()
    background: Counter[str] = Counter()
    for note in told:
        sources.update(note.cost)
        background.update(note.background)
    seconds = sum(note.seconds for note in told)
    return Cost(longest.steps, longest.watched, seconds, dict(sources), dict(background))


def run_facts(run: RunFolder, notes: Sequence[ProcessNote]) -> Mapping[str, object]:
    """What a report tells of the run itself."""
    manifest = run.manifest
    recorded, untrained = recorded_of(notes), untrained_in(notes)
    return {
        "folder": redaction.text(str(run.path)),
        "script": manifest.script,
        "mode": manifest.mode,
        "started": manifest.started,
        "ended": manifest.ended,
        "exit_code": manifest.exit_code,
        "traincheck": manifest.traincheck,
        "python": manifest.python,
        "torch": next((note.torch for note in notes if note.torch), manifest.torch),
        "processes": len(notes),
        **({"full": full} if (full := sorted({each for note in notes for each in note.full})) else {}),
        **({"recorded": recorded} if recorded else {}),
        **({"untrained": untrained} if untrained else {}),
        "crashed": [f"rank {note.rank}, process {note.process}" for note in notes if not note.ended],
    }
