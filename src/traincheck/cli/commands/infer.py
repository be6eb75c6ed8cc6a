"""`traincheck infer`: learn a book of invariants from good runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck.addresses import readable_place
from traincheck.cli import flags, output_files
from traincheck.cli.console import Progress, amount, columns, remark, say, size
from traincheck.errors import BadOption
from traincheck.options import OPTIONS, RAY

if TYPE_CHECKING:
    from traincheck.inference.tally import Tally
    from traincheck.inference.tally_runs import Cluster
    from traincheck.invariants.book import Book

EPILOG = """\b
Examples:
  traincheck infer runs/cnn runs/lstm runs/gpt -o good.jsonl
  traincheck infer runs/last-week -o pipeline.jsonl --journal why.jsonl
  traincheck infer runs/monday --tally monday.tally
  traincheck infer monday.tally tuesday.tally runs/wednesday -o week.jsonl --jobs 8
  traincheck infer s3://lab/runs/monday s3://lab/runs/tuesday -o good.jsonl
  traincheck infer /shared/runs/* -o good.jsonl --engine ray --address 10.0.0.1:6379

Several runs of different scripts give rules that transfer to others. `traincheck show BOOK` prints them,
`traincheck explain` says why a candidate was kept or dropped. A tally file holds what was counted of some runs: it is
small, takes the place of the recordings, and gives the same book.
"""


def command(
    runs: flags.Recordings,
    book: flags.BookFile = None,
    tally: flags.TallyFile = None,
    journal: flags.Journal = None,
    jobs: flags.Jobs = None,
    engine: flags.Engine = None,
    address: flags.ClusterAddress = None,
) -> None:
    """Learn a book of invariants from good runs."""
    raise typer.Exit(infer(runs, book, journal, tally, Readers.of(jobs, engine, address)))


@dataclass(frozen=True)
class Readers:
    """Who reads the recordings: so many local processes (as many as suit them where it is None), or a Ray cluster."""

    jobs: int | None = None
    ray: bool = False
    address: str = ""

    @classmethod
    def of(cls, jobs: int | None, engine: str | None, address: str | None) -> Readers:
        """As the options say. Raises BadOption."""
        if engine is not None and engine not in OPTIONS["engine"].choices:
            raise BadOption("--engine", engine, OPTIONS["engine"].expected)
        if jobs is not None and jobs < 1:
            raise BadOption("--jobs", jobs, OPTIONS["jobs"].expected)
        if address is not None and engine != RAY:
            raise BadOption("--address", address, "--engine ray as well, whose cluster it is the address of")
        if address and jobs is not None:
            raise BadOption("--jobs", jobs, "nothing beside --address: the cluster says how many read at a time")
        return cls(jobs, engine == RAY, address or "")

    @contextmanager
    def reading(self, runs: Sequence[Path]) -> Iterator[tuple[int, Cluster | None]]:
        """The local jobs and the cluster that read in the block."""
        if not self.ray:
            yield workable(self.jobs, runs), None
            return
        from traincheck.inference.ray_cluster import RayCluster
        from traincheck.inference.worker_pool import cores

        with RayCluster(self.address, self.jobs or cores()) as cluster:
            yield 1, cluster


def infer(
    named: Sequence[str],
    book: Path | None,
    journal: Path | None = None,
    tally: Path | None = None,
    readers: Readers | None = None,
) -> int:
    """Learn from run folders and tally files, write what was asked for, and say what was learned."""
    if book is None and tally is None:
        raise BadOption("infer", "no output", "-o BOOK to learn a book, --tally FILE to keep what was counted, or both")
    if book is None and journal is not None:
        raise BadOption("--journal", str(journal), "-o BOOK as well: without a book no candidate is weighed")
    readers = readers or Readers()
    runs = [readable_place(name) for name in named]
    if tally is not None:
        output_files.may_replace_tally(tally, "--tally")
    if book is None:
        assert tally is not None
        return keep_tally(runs, tally, readers)
    journal = journal or Path(f"{book}.journal.jsonl")
    output_files.may_replace_book(book)
    output_files.may_replace_journal(journal, "--journal")
    from traincheck.inference.learn import learn

    with readers.reading(runs) as (jobs, cluster), Progress() as progress:
        learned = learn(runs, progress, jobs, cluster)
    for line in learned.remarks:
        remark(line)
    if tally is not None:
        write_tally(learned.tallies, tally)
    learned.journal.write(journal)
    written = output_files.replace_book(learned.book, book)
    for line in summary(written):
        say(line)
    remark(f"{amount(len(written.invariants), 'invariant')} in {book} ({learned.seconds:.1f} s)")
    remark(f"why each candidate was kept or dropped: {journal}")
    return 0


def keep_tally(runs: Sequence[Path], path: Path, readers: Readers) -> int:
    """Count what is in the run folders and tally files, without learning from it."""
    from traincheck.inference.tally_runs import gather

    with readers.reading(runs) as (jobs, cluster), Progress() as progress:
        gathered = gather(runs, progress, jobs, cluster)
    for line in gathered.remarks:
        remark(line)
    write_tally(gathered.tallies, path)
    return 0


def write_tally(tallies: Sequence[Tally], path: Path) -> None:
    """Write the tally file and say so."""
    from traincheck.inference.tally_files import write_tallies

    write_tallies(tallies, path)
    taken = f" ({size(path.stat().st_size)})" if path.is_file() else ""
    remark(f"what was counted of {amount(len(tallies), 'run')}: {path}{taken}")


def workable(jobs: int | None, runs: Sequence[Path]) -> int:
    """The number of jobs that was asked for, or one that suits the recordings. Raises BadOption."""
    from traincheck.inference.tally_runs import suitable_jobs

    if jobs is None:
        return suitable_jobs(runs)
    if jobs < 1:
        raise BadOption("--jobs", jobs, OPTIONS["jobs"].expected)
    return jobs


def summary(book: Book) -> list[str]:
    """How many invariants of each relation and severity there are, as lines of a table."""
    counts = Counter((invariant.relation, invariant.severity, invariant.scope) for invariant in book.invariants)
    rows = [
        (relation, severity, scope, f"{number:,}") for (relation, severity, scope), number in sorted(counts.items())
    ]
    return columns([("relation", "severity", "scope", "invariants"), *rows])
