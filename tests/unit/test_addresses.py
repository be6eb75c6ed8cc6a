"""fsspec reads run folders and tally files at addresses, and failures are reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recorded_runs import training, write_run
from traincheck.addresses import Address, as_path, readable_path
from traincheck.errors import BadOption, MissingExtra, RunFolderNotFound, TallyUnreadable, TraceOutOfReach
from traincheck.inference.ray_cluster import RayCluster
from traincheck.inference.tally_files import write_tallies
from traincheck.inference.tally_runs import gather, suitable_jobs
from traincheck.trace.folder import RunFolder

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A run of two ranks and a file that is something else, on disk and in fsspec's memory."""
    write_run(tmp_path / "run", "a.py", {(0, 1): training(8), (1, 1): training(8, rank=1)})
    (tmp_path / "other.tally").write_text("something else")
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "run"), "/lab/run", recursive=True)
    system.put(str(tmp_path / "other.tally"), "/lab/other.tally")
    yield tmp_path
    system.rm("/lab", recursive=True)


def test_a_run_is_the_same_wherever_it_is(memory: Path, tmp_path: Path) -> None:
    there, here = readable_path("memory://lab/run/"), memory / "run"
    assert str(there) == "memory://lab/run"
    assert [file.name for file in RunFolder.open(there).event_files()] == ["events-0-1.arrows", "events-1-1.arrows"]
    assert suitable_jobs([there]) == suitable_jobs([here])
    results = [gather([source]) for source in (there, here)]
    written = []
    for number, result in enumerate(results):
        write_tallies(result.tallies, tmp_path / f"{number}.tally")
        written.append((tmp_path / f"{number}.tally").read_bytes())
    assert written[0] == written[1]
    fsspec.filesystem("memory").put(str(tmp_path / "0.tally"), "/lab/0.tally")
    again = gather([readable_path("memory://lab/0.tally"), here])
    assert len(again.tallies) == 1 and "counts once" in again.remarks[0]


def test_missing_paths_and_wrong_kinds_are_reported(memory: Path) -> None:
    with pytest.raises(RunFolderNotFound, match="memory://lab/absent"):
        gather([readable_path("memory://lab/absent")])
    with pytest.raises(TallyUnreadable, match=r"memory://lab/other\.tally"):
        gather([readable_path("memory://lab/other.tally")])
    with pytest.raises(TraceOutOfReach, match="absent"):
        as_path("memory://lab/absent").read_bytes()


def test_a_failing_driver_is_reported_with_the_address(monkeypatch: pytest.MonkeyPatch, memory: Path) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    for name in ("open", "ls"):
        with monkeypatch.context() as broken:
            broken.setattr(type(fsspec.filesystem("memory")), name, refused)
            with pytest.raises(TraceOutOfReach, match=r"memory://lab/run.*RuntimeError: no credentials"):
                gather([readable_path("memory://lab/run")])


def test_a_read_that_fails_on_the_way_is_no_garbled_file(monkeypatch: pytest.MonkeyPatch, memory: Path) -> None:
    from fsspec.implementations.memory import MemoryFile

    def broken(*_: object) -> bytes:
        raise OSError("connection reset")

    monkeypatch.setattr(MemoryFile, "read", broken)
    with pytest.raises(TraceOutOfReach, match=r"events-0-1\.arrows.*connection reset"):
        gather([readable_path("memory://lab/run")])


def test_a_path_stays_a_path() -> None:
    assert readable_path("runs/monday") == Path("runs/monday")
    assert isinstance(as_path("memory://lab/run"), Address)


def test_an_unknown_protocol_is_reported() -> None:
    with pytest.raises(BadOption, match="gopher://x"):
        readable_path("gopher://x")


@pytest.mark.parametrize(
    ("absent", "address", "cure"),
    [
        ("fsspec.registry", "s3://lab/run", "traincheck[remote]"),
        ("s3fs", "s3://lab/run", "traincheck[remote]"),
        ("gcsfs", "gs://lab/run", "pip install gcsfs"),
    ],
)
def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, absent: str, address: str, cure: str) -> None:
    for name in ("s3", "gcs", "gs"):  # what was loaded before is known without its package
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingExtra) as caught:
        readable_path(address)
    assert cure in str(caught.value) and address in str(caught.value)


def test_ray_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"traincheck\[ray\]"), RayCluster():
        pass
