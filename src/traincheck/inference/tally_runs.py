"""Gather the tallies of recorded runs and of tally files, in one process or several.

Note [A run counts once]
A run that is named twice (as a folder and in a tally file, say) must count once. So a digest identifies a run: over the
constant part of its run.json and the bytes of its event files. The place where it was recorded or copied to does not
matter. A repetition of the same program is another run, because it began at another time.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import xxhash

from traincheck import plugins
from traincheck.errors import RunFolderEmpty, TraceOutOfReach
from traincheck.inference.tally import Tally
from traincheck.inference.tally_files import read_tallies
from traincheck.inference.worker_pool import available_cores, run_in_workers
from traincheck.relations.base import compares_ranks
from traincheck.trace.alignment import aligned
from traincheck.trace.folder import RunFolder, bytes_of
from traincheck.trace.reader import read_windows
from traincheck.trace.run_notes import Manifest
from traincheck.trace.segments import segments
from traincheck.vocab.events import MISSING, Window

Progress = Callable[[str, int, int], None]
"""Called with the current activity, how much of it is done and how much there is."""

WORTH_A_WORKER = 1_000_000
"""Bytes of events that take about as long to read as a further process takes to start: half a second."""


@dataclass(frozen=True)
class Gathered:
    """The tallies of some runs, each run once, in a fixed order; with remarks for the reader."""

    tallies: tuple[Tally, ...]
    remarks: tuple[str, ...] = ()


class _TallyPart(NamedTuple):
    """A unit of work, with the program from run.json: the event file of a process, or those of one process of each
    rank, which are compared."""

    files: tuple[Path, ...]
    script: str
    digest: str

    def __str__(self) -> str:
        return ", ".join(map(str, self.files))

    @property
    def size(self) -> int:
        return sum(map(bytes_of, self.files))


class _Done(NamedTuple):
    """The tally of some parts of a run, and the name and digest of each file that it was made of (none if ranks were
    compared)."""

    tally: Tally
    contents: tuple[str, ...] = ()


@dataclass
class _Recorded:
    """A run folder, and the results of its event files so far."""

    path: Path
    manifest: Manifest
    parts: tuple[_TallyPart, ...]
    missing: tuple[str, ...] = ()
    done: list[_Done] = field(default_factory=list)


class Cluster(Protocol):
    """Tallies parts of runs on other machines."""

    def reduced(
        self,
        work: Callable[[Any], Any],
        joined: Callable[[Sequence[Any]], Any],
        groups: Sequence[Sequence[Any]],
        progress: Callable[[int, int], None],
    ) -> list[Any]:
        """For each group, `work` of each of its members, joined in a tree, in any order and grouping."""


def gather(
    sources: Sequence[Path], progress: Progress | None = None, jobs: int = 1, cluster: Cluster | None = None
) -> Gathered:
    """The tallies of all runs in `sources`, which are run folders and tally files. Up to `jobs` processes at a time, or
    a cluster, read event files.

    The result depends neither on the order of the sources nor on who reads them. With more than one job,
    multiprocessing must be able to start the calling program again (`if __name__ == "__main__"`). Raises
    RunFolderError, TallyError and WorkerLost.
    """
    # All are opened before one is read, so that errors do not appear after an hour.
    opened = [read_tallies(source) if source.is_file() else _recorded(source) for source in sources]
    recorded = [opened_source for opened_source in opened if isinstance(opened_source, _Recorded)]
    if cluster is None:
        _read(recorded, progress, jobs)
    else:
        _read_on(cluster, recorded, progress)
    tallies = [
        [_merged(opened_source)] if isinstance(opened_source, _Recorded) else opened_source for opened_source in opened
    ]
    results = each_run_once((source, tally) for source, own in zip(sources, tallies, strict=True) for tally in own)
    missing = [
        f"{opened_source.path}: {remark}"
        for opened_source in opened
        if isinstance(opened_source, _Recorded)
        for remark in opened_source.missing
    ]
    return replace(results, remarks=(*missing, *results.remarks))


def each_run_once(tallies_by_source: Iterable[tuple[Path, Tally]]) -> Gathered:
    """The tallies, each given with its path: each run once, in an order that does not depend on theirs. Of two tallies
    of one run, perhaps made by different versions, the one that holds more stays."""
    kept: dict[str, tuple[Path, Tally]] = {}
    tallies: list[Tally] = []
    again: Counter[tuple[Path, Path]] = Counter()
    for source, tally in tallies_by_source:
        if not tally.run:
            tallies.append(tally)
            continue
        first = kept.setdefault(tally.run, (source, tally))
        again[first[0], source] += first[1] is not tally
        kept[tally.run] = max(first, (source, tally), key=lambda entry: (entry[1].windows, len(entry[1].cells)))
    tallies.extend(tally for _, tally in kept.values())
    tallies.sort(key=lambda tally: (tally.script, tally.digest, tally.steps, tally.run))
    installed = set(plugins.load("traincheck.relations"))
    missing = sorted({relation for tally in tallies for relation, _ in tally.cells} - installed)
    remarks = [
        f"{source} holds {times} {'run' if times == 1 else 'runs'} that "
        + ("were named before" if before == source else f"{before} holds, too")
        + "; each run counts once"
        for (before, source), times in again.items()
        if times
    ]
    remarks.extend(f"counts of the relation {name}, which is not installed here, are left out" for name in missing)
    return Gathered(tuple(tallies), tuple(remarks))


def tally_folder(folder: Path) -> Tally:
    """The tally of one run folder (all its processes). Raises RunFolderError."""
    recorded = _recorded(folder)
    _read([recorded], None, 1)
    return _merged(recorded)


def tally_windows(windows: Iterable[Window], tally: Tally) -> bool:
    """Add the windows of one process, in order, to the tally of its run; return whether there were any."""
    relations = [relation() for relation in plugins.load("traincheck.relations").values()]
    part = Tally(tally.script, tally.digest, tally.run)
    for window in windows:
        if _is_incomplete(window):
            continue
        part.add_window(window)
        for relation in relations:
            part.add_occasions(relation.name, relation.occasions(window), window.index)
    tally.merge(part)
    return part.windows > 0


def tally_ranks(windows_of: Sequence[Iterable[Window]], tally: Tally) -> None:
    """Add the occasions of several ranks together to the tally of their run; `windows_of` holds the windows of one
    process of each rank."""
    relations = _comparing()
    part = Tally(tally.script, tally.digest, tally.run)
    for windows in aligned(windows_of):
        if any(map(_is_incomplete, windows)):
            continue
        for relation in relations:
            part.add_occasions(relation.name, relation.across(windows), windows[0].index)
    tally.merge(part)


def _is_incomplete(window: Window) -> bool:
    """Whether a source was lost or switched off: then events are missing that the program did produce."""
    return any(reason != MISSING for reason in window.off.values())


def _comparing() -> list[Any]:
    """A new instance of each relation that compares ranks."""
    return [relation() for relation in plugins.load("traincheck.relations").values() if compares_ranks(relation)]


def suitable_jobs(sources: Sequence[Path]) -> int:
    """As many jobs as there are cores and as the recordings justify, see `WORTH_A_WORKER`."""
    sizes = [bytes_of(file) for source in sources if source.is_dir() for file in RunFolder(source).event_files()]
    return max(1, min(available_cores(), len(sizes), sum(sizes) // WORTH_A_WORKER))


def _recorded(path: Path) -> _Recorded:
    folder = RunFolder.open(path)
    manifest = folder.manifest
    files = [(file,) for file in folder.event_files()]
    ranks = [tuple(file for _, file in sorted(job.files.items())) for job in folder.jobs()]
    groups = [*files, *(job for job in ranks if len(job) > 1 and _comparing())]
    parts = (_TallyPart(group, manifest.script, manifest.script_digest) for group in groups)
    return _Recorded(path, manifest, tuple(parts), folder.removed() + folder.left_out())


def _read(folders: Sequence[_Recorded], progress: Progress | None, jobs: int) -> None:
    """Tally every part of the folders."""
    work = [(folder, part) for folder in folders for part in folder.parts]
    if jobs > 1:  # the largest first, so that no process is left alone with one at the end
        work.sort(key=lambda item: -item[1].size)
    if progress and work:
        progress(f"reading {work[0][0].path}", 0, len(work))
    finished = run_in_workers(_tally_part, [part for _, part in work], jobs)
    for number, (index, done) in enumerate(finished, start=1):
        folder, _ = work[index]
        folder.done.append(done)
        if progress:  # reports the next item, as far as it is known
            progress(f"reading {work[min(number, len(work) - 1)][0].path}", number, len(work))


def _read_on(cluster: Cluster, folders: Sequence[_Recorded], progress: Progress | None) -> None:
    """Tally every part of the folders on a cluster."""
    groups = [folder.parts for folder in folders if folder.parts]
    report = progress or (lambda activity, done, total: None)
    results = cluster.reduced(_tally_part, _join_done, groups, functools.partial(report, "reading on the cluster"))
    for folder, done in zip((folder for folder in folders if folder.parts), results, strict=True):
        folder.done.append(done)


def _join_done(several: Sequence[_Done]) -> _Done:
    """The results of several parts of one run, as one."""
    first = several[0].tally
    whole = Tally(first.script, first.digest)
    for done in several:
        whole.merge(done.tally)
    return _Done(whole, tuple(name for done in several for name in done.contents))


def _tally_part(part: _TallyPart) -> _Done:
    """The tally of one part. Runs in a worker process if there are several."""
    tally = Tally(part.script, part.digest)
    if len(part.files) > 1:
        tally_ranks([read_windows(file) for file in part.files], tally)
        return _Done(tally)
    tally_windows(read_windows(part.files[0]), tally)
    return _Done(tally, (f"{part.files[0].name} {_content(part.files[0])}",))


def _content(path: Path) -> str:
    state = xxhash.xxh3_128()
    try:
        for segment in segments(path):
            with segment.open("rb") as file:
                while block := file.read(1 << 20):
                    state.update(block)
    except OSError as error:
        raise TraceOutOfReach(path, error.strerror or str(error)) from error
    return str(state.hexdigest())


def _merged(folder: _Recorded) -> Tally:
    """The tally of a run from those of its processes."""
    manifest = folder.manifest
    contents = [name for done in folder.done for name in done.contents]
    identity = "\x1f".join(
        (manifest.script, manifest.script_digest, manifest.started, *manifest.argv, *sorted(contents))
    )
    run = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    whole = Tally(manifest.script, manifest.script_digest, run, manifest.program)
    for done in folder.done:
        whole.merge(done.tally)
    if not whole.windows:
        raise RunFolderEmpty(folder.path, "no window was recorded")
    return whole.arrange()
