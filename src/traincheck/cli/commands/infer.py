"""`traincheck infer`: learn a book of invariants from good runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck.addresses import readable_path
from traincheck.cli import flags, output_files
from traincheck.cli.console import Progress, amount, columns, remark, say, size
from traincheck.errors import BadOption
from traincheck.options import AUTO, OPTIONS

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
  traincheck infer /shared/runs/* -o good.jsonl --ray 10.0.0.1:6379

Runs of several scripts give rules that transfer to other programs. `traincheck show BOOK` prints the rules,
`traincheck explain` says why a candidate was kept or dropped. A tally file holds the counts of some runs: it is small,
replaces the recordings, and gives the same book.
"""


def command(
    runs: flags.Recordings,
    book: flags.BookFile = None,
    tally: flags.TallyFile = None,
    journal: flags.Journal = None,
    jobs: flags.Jobs = None,
    ray: flags.Ray = None,
) -> None:
    """Learn a book of rules from good runs."""
    raise typer.Exit(infer(runs, book, journal, tally, Readers.of(jobs, ray)))


@dataclass(frozen=True)
class Readers:
    """The readers of the recordings: `jobs` local processes (None for a suitable number), or a Ray cluster."""

    jobs: int | None = None
    ray: bool = False
    address: str = ""

    @classmethod
    def of(cls, jobs: int | None, ray: str | None) -> Readers:
        """The readers that the options request. Raises BadOption."""
        if jobs is not None and jobs < 1:
            raise BadOption("--jobs", jobs, OPTIONS["jobs"].expected)
        address = "" if ray == AUTO else ray or ""
        if address and jobs is not None:
            raise BadOption("--jobs", jobs, "no --jobs with --ray ADDRESS: the cluster sets the number of readers")
        return cls(jobs, ray is not None, address)

    @contextmanager
    def reading(self, runs: Sequence[Path]) -> Iterator[tuple[int, Cluster | None]]:
        """The number of local readers and the cluster, for the block."""
        if not self.ray:
            yield checked_jobs(self.jobs, runs), None
            return
        from traincheck.inference.ray_cluster import RayCluster
        from traincheck.inference.worker_pool import available_cores

        with RayCluster(self.address, self.jobs or available_cores()) as cluster:
            yield 1, cluster


def infer(
    names: Sequence[str],
    book: Path | None,
    journal: Path | None = None,
    tally: Path | None = None,
    readers: Readers | None = None,
) -> int:
    """Learn from run folders and tally files, write the requested files, and print a summary."""
    if book is None and tally is None:
        raise BadOption("infer", "no output", "-o BOOK to learn a book, --tally FILE to keep the counts, or both")
    if book is None and journal is not None:
        raise BadOption("--journal", str(journal), "-o BOOK as well: without a book there are no candidates")
    readers = readers or Readers()
    runs = [readable_path(name) for name in names]
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
    remark(f"journal of all candidates: {journal}")
    return 0


def keep_tally(runs: Sequence[Path], path: Path, readers: Readers) -> int:
    """Write the counts of the run folders and tally files, without learning from them."""
    from traincheck.inference.tally_runs import gather

    with readers.reading(runs) as (jobs, cluster), Progress() as progress:
        gathered = gather(runs, progress, jobs, cluster)
    for line in gathered.remarks:
        remark(line)
    write_tally(gathered.tallies, path)
    return 0


def write_tally(tallies: Sequence[Tally], path: Path) -> None:
    """Write the tally file and report it."""
    from traincheck.inference.tally_files import write_tallies

    write_tallies(tallies, path)
    bytes_written = f" ({size(path.stat().st_size)})" if path.is_file() else ""
    remark(f"counts of {amount(len(tallies), 'run')}: {path}{bytes_written}")


def checked_jobs(jobs: int | None, runs: Sequence[Path]) -> int:
    """The requested number of jobs, or one that suits the recordings. Raises BadOption."""
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
