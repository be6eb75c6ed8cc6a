"""The process that forks the commands of tests, see tests/warm_commands.py.

    python tests/warm_server.py LISTENER

It answers each request on the socket LISTENER with the id of the new process, and later with its wait status. The id is
0 if a fork would not be what the request starts. It ends when stdin is closed.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import select
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks.forked_programs import execute, preload

from traincheck.cli.main import PROGRAM_FOLLOWS
from traincheck.cli.report_output import import_report_modules
from traincheck.runtime.launching.child_processes import SEARCH_PATH, SESSION
from warm_commands import ANSWER, PythonProcess, Request

READ_EARLY = (
    *("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_"),
    *("NPY_", "TORCH", "PYTORCH_", "ATEN_", "NCCL_", "GLOO_", "CUDA", "CUBLAS_", "NVIDIA_", "HIP_", "ARROW_", "XLA_"),
    "JAX_",
)
"""Beginnings of the names of variables that Python or a library reads when it starts."""
PARTS = ("checking", "cli", "diagnoses", "inference", "invariants", "relations", "trace")
"""The packages of TrainCheck that commands import. None of them imports a framework."""
IMPORTS_TORCH = re.compile(r"^ *(import|from) .*\btorch\b", re.MULTILINE)
ENVIRON = dict(os.environ)


def main(listener: socket.socket) -> None:
    """Fork until stdin is closed."""
    _prepare()
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: pytest gets it as well, and ends
    lifeline = os.dup(sys.stdin.fileno())
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, lifeline, woken], [], [])
        if lifeline in ready:
            os._exit(0)
        if woken in ready:
            woken.recv(1 << 12)
            for pid, status in _ended():
                _answer(running.pop(pid), status)
        if listener in ready:
            connection, _ = listener.accept()
            request, streams = Request.receive(connection)
            pid = 0
            if can_be_forked(request):
                pid = os.fork()
                if pid == 0:
                    for other in (listener, woken, wake, connection, *running.values()):
                        other.close()
                    os.close(lifeline)
                    become(request, streams)
                running[pid] = connection
            for stream in streams:
                os.close(stream)
            _answer(connection, pid)


def _prepare() -> None:
    for part in PARTS:
        package = importlib.import_module(f"traincheck.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    import_report_modules()
    preload()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("benchmarks", "warm_commands")]:
        del sys.modules[name]  # not what a program finds under this name
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry) not in (here, here.parent)]


def _ended() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _answer(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody waits for it anymore
        connection.sendall(ANSWER.pack(number))


def can_be_forked(request: Request) -> bool:
    """Whether a fork of this process would be what the request starts."""
    if _read_early(request.env) != _read_early(ENVIRON):
        return False
    first, folder = request.words[0], Path(request.cwd)
    if first != "-m":
        if not first.endswith(".py") or not (folder / first).is_file():
            return False
        if SESSION in request.env and not IMPORTS_TORCH.search((folder / first).read_text(errors="replace")):
            return False  # TrainCheck attaches when torch is imported, which a fork has done already
        folder = (folder / first).resolve().parent
    elif len(request.words) < 2:
        return False
    return not any(map(_hides_modules, (folder, *_search_path(request))))


def _read_early(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name.startswith(READ_EARLY) and name != SEARCH_PATH}


def _search_path(request: Request) -> list[Path]:
    entries = request.env.get(SEARCH_PATH, "").split(os.pathsep)
    return [Path(request.cwd) / entry for entry in entries if entry]


def _hides_modules(folder: Path) -> bool:
    """Whether a module or package in a folder has the name of another one that is already imported."""
    if not folder.is_dir():
        return False
    for entry in os.scandir(folder):
        name = entry.name.partition(".")[0]
        is_module = entry.name.endswith((".py", ".so")) or Path(entry, "__init__.py").is_file()
        if is_module and name in sys.modules and name not in ("sitecustomize", "__main__"):
            file = getattr(sys.modules[name], "__file__", None)
            if file is None or folder.resolve() not in Path(file).resolve().parents:
                return True
    return False


def become(request: Request, streams: Sequence[int]) -> None:
    """Be the process of a request, and end as it does. Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    if request.new_session:
        os.setsid()
    if request.words[:2] == ["-m", "traincheck"] and PROGRAM_FOLLOWS.intersection(request.words):
        _Program.spare = _Spare()
        subprocess.Popen = _Program  # type: ignore[misc]
    _start_python(request)


def _start_python(request: Request) -> None:
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    tempfile.tempdir = None
    sys.argv = list(request.words)  # sitecustomize reads it
    sys.orig_argv = [sys.executable, *request.words]
    if entries := _search_path(request):
        sys.path[:0] = map(str, entries)
        site.removeduppaths()
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()
    execute(request.words)


class _Spare:
    """A fork that waits for a request of the process that made it: its child, and as young as this server."""

    def __init__(self) -> None:
        self.connection, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            other.close()
            return
        self.connection.close()
        received = Request.receive(other)
        other.close()
        if received is None:
            os._exit(0)
        request, streams = received
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _start_python(request)


class _Program(PythonProcess):
    """The program that a command of TrainCheck starts: the spare fork becomes the first that inherits its streams."""

    spare: ClassVar[_Spare | None] = None

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        spare = type(self).spare
        if spare is None or request.new_session or max(streams) > 2 or not can_be_forked(request):
            return 0
        type(self).spare = None
        with spare.connection:
            request.send(spare.connection, streams)
        return spare.pid


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
