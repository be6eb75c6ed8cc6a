"""`traincheck infer --ray`: real workers, run folders on disk and on an S3 server, and always the same book."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from lost_workers import faltering, lost
from recorded_runs import training, write_run
from traincheck.errors import TraceUnreadable, WorkerLost
from traincheck.inference.ray_cluster import RayCluster
from traincheck.inference.tally_files import write_tallies
from traincheck.inference.tally_runs import gather

psutil = pytest.importorskip("psutil")
# Not imported here: where Ray listens is settled when it is imported.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]

TESTS = Path(__file__).parents[1]
BUCKET = "recordings"
KINDS = ("jsonl", "tally", "jsonl.journal.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """More files than are joined at once, of several programs, one of them on two ranks."""
    home = tmp_path_factory.mktemp("runs")
    ranks = {(0, 1): training(30), (1, 1): training(30, rank=1)}
    folders = [write_run(home / "ranks", "ranks.py", ranks)]
    for number in range(9):
        started = f"2026-01-02T03:04:{number:02}+00:00"
        folders.append(write_run(home / f"run{number}", f"{number % 3}.py", training(10 + number), started=started))
    return folders


@pytest.fixture(scope="module")
def bucket(runs: list[Path]) -> Iterator[str]:
    """The same run folders on an S3 server on loopback."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),  # for workers
    }
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        # What an earlier server held outlives it in this process, where tests are set up twice.
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
        system = pytest.importorskip("s3fs").S3FileSystem(skip_instance_cache=True)
        system.mkdir(BUCKET)
        for run in runs:
            system.put(str(run), f"{BUCKET}/{run.name}", recursive=True)
        yield f"s3://{BUCKET}"
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.stop()


@pytest.fixture(scope="module")
def cluster(bucket: str) -> Iterator[RayCluster]:
    others = ray_processes()
    with RayCluster(workers=2) as cluster:
        yield cluster
    none_is_left(others)


def ray_processes() -> list[Any]:
    ours = psutil.Process().children(recursive=True)
    return [process for process in ours if process.is_running() and "ray" in " ".join(_words(process))]


def _words(process: Any) -> list[str]:
    try:
        return [process.name(), *process.cmdline()]
    except psutil.Error:
        return []


def none_is_left(others: Sequence[Any]) -> None:
    """Soon there are no processes of Ray but these `others`, which other tests in this process have begun."""
    deadline = time.monotonic() + 60
    while left := [process for process in ray_processes() if process not in others]:
        assert time.monotonic() < deadline, f"left behind: {[_words(process) for process in left]}"
        time.sleep(0.1)


def in_bytes(folder: Path, *how: Any, **more: Any) -> bytes:
    file = folder / "gathered"
    write_tallies(gather(*how, **more).tallies, file)
    return file.read_bytes()


class Losing:
    """A cluster of which the worker that begins with `victim` is lost, once or each time."""

    def __init__(self, cluster: RayCluster, victim: str, mark: Path, *, always: bool = False) -> None:
        self._cluster = cluster
        self._loss = (victim, str(mark), always)

    def reduced(self, work: Callable[[Any], Any], *rest: Any) -> list[Any]:
        return self._cluster.reduced(partial(lost, work, *self._loss), *rest)


class Faltering(Losing):
    """A cluster of which a worker cannot reach its file, once."""

    def reduced(self, work: Callable[[Any], Any], *rest: Any) -> list[Any]:
        return self._cluster.reduced(partial(faltering, work, *self._loss), *rest)


@pytest.mark.long
def test_the_command_gives_the_same_bytes_from_disk_and_from_s3(runs: list[Path], bucket: str, tmp_path: Path) -> None:
    others = ray_processes()  # of the fixture, where another test began it
    infer = [sys.executable, "-m", "traincheck", "infer"]
    on_s3 = [f"{bucket}/{run.name}" for run in runs]
    ways: dict[str, Sequence[str]] = {
        "disk": [*map(str, runs), "--jobs", "2"],
        "s3": [*on_s3, "--jobs", "1"],
        "ray": [*on_s3[:6], *map(str, runs[6:]), "--ray", "auto", "--jobs", "3"],
    }
    for name, words in ways.items():
        out = ["-o", f"{name}.jsonl", "--tally", f"{name}.tally"]
        done = subprocess.run([*infer, *words, *out], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "usage" not in done.stderr.lower() and "INFO" not in done.stderr
    for kind in KINDS:
        assert len({(tmp_path / f"{name}.{kind}").read_bytes() for name in ways}) == 1, kind
    none_is_left(others)


def test_ray_listens_on_this_machine_only(cluster: RayCluster) -> None:
    listening = [
        (process.name(), connection.laddr.ip)
        for process in ray_processes()
        for connection in getattr(process, "net_connections", process.connections)("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening, "Ray's own processes are looked at"
    assert {address for _, address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_killed_worker_is_replaced(cluster: RayCluster, runs: list[Path], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert in_bytes(tmp_path, runs, cluster=Losing(cluster, "run4", mark)) == in_bytes(tmp_path, runs)
    assert mark.exists()


def test_a_file_that_is_out_of_reach_for_once_is_read_again(
    cluster: RayCluster, runs: list[Path], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    assert in_bytes(tmp_path, runs, cluster=Faltering(cluster, "run7", mark)) == in_bytes(tmp_path, runs)
    assert mark.exists()


def test_a_worker_that_is_lost_each_time_is_an_error(cluster: RayCluster, runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match=r"run4.*again and again"):
        gather(runs, cluster=Losing(cluster, "run4", tmp_path / "mark", always=True))


def test_errors_in_a_recording_are_reported_as_without_ray(cluster: RayCluster, tmp_path: Path) -> None:
    run = write_run(tmp_path / "garbled", "a.py", training(5))
    (run / "events-0-1.arrows").write_bytes(b"garbled" * 100)
    messages = set()
    for where in (None, cluster):
        with pytest.raises(TraceUnreadable) as caught:
            gather([run], cluster=where)
        messages.add(str(caught.value))
    assert len(messages) == 1
