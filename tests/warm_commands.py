"""Runs Python commands of tests in forks of a process that has imported torch, which saves seconds for each.

See Note [Warm starts] in benchmarks/forked_programs.py, tests/warm_server.py for the process that forks, and
docs/decisions/0064-commands-of-tests-start-warm.md for what differs from a real start. `pytest --cold` starts every
command by its command line.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

SERVER = Path(__file__).with_name("warm_server.py")
ANSWER = struct.Struct("q")
"""The server answers with the id of the process, and at its end with its wait status."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a Python process is started with: the words after `python`, and whether it leads a session of its own."""

    words: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    new_session: bool = False

    def send(self, to: socket.socket, streams: Sequence[int]) -> None:
        """Send this with the standard streams of the process. Nothing can be sent afterwards."""
        text = json.dumps(asdict(self)).encode(errors="surrogateescape")
        socket.send_fds(to, [text[:1]], streams)
        to.sendall(text[1:])
        to.shutdown(socket.SHUT_WR)

    @classmethod
    def receive(cls, connection: socket.socket) -> tuple[Request, list[int]] | None:
        """Wait for a request and its streams. None if the other end closes without any."""
        text, streams, _, _ = socket.recv_fds(connection, 1, 3)
        if not text:
            return None
        while part := connection.recv(1 << 16):
            text += part
        return cls(**json.loads(text.decode(errors="surrogateescape"))), streams


class PythonProcess(subprocess.Popen[Any]):
    """A process that runs `sys.executable`; a fork where `fork` can make one."""

    def __init__(self, args: Any, *, start_new_session: bool = False, **options: Any) -> None:
        self._new_session = start_new_session
        super().__init__(args, start_new_session=start_new_session, **options)

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        """Make the process; its id, or 0 if it has to be started by its command line."""
        raise NotImplementedError

    def _execute_child(self, *args: Any) -> None:  # type: ignore[override]
        argv, executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *streams_and_more = args
        streams = tuple(streams_and_more[:6])
        child_ends = [end if end >= 0 else number for number, end in enumerate((streams[0], streams[3], streams[5]))]
        words = [argv] if isinstance(argv, (str, bytes, os.PathLike)) else [os.fspath(word) for word in argv]
        plain = executable is None and preexec_fn is None and not pass_fds and not shell
        if plain and len(words) > 1 and words[0] == sys.executable and all(isinstance(word, str) for word in words):
            environ = {
                os.fspath(name): os.fspath(value) for name, value in (os.environ if env is None else env).items()
            }
            request = Request(words[1:], str(Path.cwd() / (cwd or ".")), environ, self._new_session)
            self.pid = self.fork(request, child_ends)
            if self.pid:
                self._child_created = True
                self._close_pipe_fds(*streams)  # type: ignore[attr-defined]
                return
        super()._execute_child(*args)  # type: ignore[misc]


class WarmProcess(PythonProcess):
    """A fork of the server of this process."""

    cold: ClassVar[bool] = False
    """Whether all are started by their command lines."""
    address: ClassVar[str] = ""
    """The socket of the server; without any, this process starts a server of its own."""
    _connection: socket.socket | None = None

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        if self.cold:
            return 0
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address or server_address())
        request.send(connection, streams)
        pid = _number(connection)
        if pid:
            self._connection = connection
        else:
            connection.close()
        return pid

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        self._connection.setblocking(not flags)
        try:
            status = _number(self._connection)
        except BlockingIOError:
            return 0, 0
        self._connection.close()
        return self.pid, status

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:  # type: ignore[override]
        if self._connection is None:
            return super()._internal_poll(*args, **options)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


SHIM = """#!{python} -IS
import sys
sys.path.insert(0, {tests!r})
from warm_commands import WarmProcess

WarmProcess.address = {address!r}
code = WarmProcess([{python!r}, *{first!r}, *sys.argv[1:]]).wait()
sys.exit(code if code >= 0 else 128 - code)
"""
"""Stands for a command of a shell, and gives its streams to a fork of the server."""


class Server:
    """The process that forks. It ends when this process does, also if that is killed."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="warm-")
        self.address = str(Path(self._folder) / "server")
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(listener.fileno())],
                env=environ,
                stdin=subprocess.PIPE,  # closed when this process ends
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
            )
        self._owner = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() != self._owner:  # in a fork of it
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def _server() -> Server:
    return Server()


def server_address() -> str:
    """The socket of the server of this process, which starts it at first use."""
    return _server().address


def path_of_shell() -> str:
    """A PATH on which a shell finds `python` and `traincheck`."""
    real = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if WarmProcess.cold:
        return real
    folder = Path(server_address()).with_name("bin")
    folder.mkdir(exist_ok=True)
    for name, first in {"python": (), "traincheck": ("-m", "traincheck")}.items():
        tests, address = str(SERVER.parent), server_address()
        (folder / name).write_text(SHIM.format(python=sys.executable, tests=tests, address=address, first=first))
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), real])


def _number(connection: socket.socket) -> int:
    """The next answer of the server."""
    answer = connection.recv(ANSWER.size)
    if not answer:
        raise RuntimeError("the server of tests/warm_commands.py has ended; its error is on stderr")
    number: int = ANSWER.unpack(answer)[0]
    return number


def start(
    command: Sequence[str | os.PathLike[str]],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    new_session: bool = False,
) -> subprocess.Popen[str]:
    """Start a command with pipes for its output. It is a fork if it begins with `sys.executable`."""
    return WarmProcess(
        command,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )


def run(
    command: Sequence[str | os.PathLike[str]],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Do what `subprocess.run(command, capture_output=True, text=True, ...)` does."""
    with start(command, cwd, env) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
