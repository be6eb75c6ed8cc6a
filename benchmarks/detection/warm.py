"""Starts programs in forks of a process that has already imported torch, without a launcher.

The benchmark starts some six hundred short programs. Its working processes import torch once and fork, see Note [Warm
starts] in benchmarks/forked_programs.py; torchrun would import torch once more. Each fork also gets the variables that
torchrun sets for each rank, and TrainCheck attached before its first line.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NoReturn

from benchmarks.forked_programs import execute, preload
from traincheck import config
from traincheck.runtime.launching import child_processes
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.run_setup import manifest, now_in_words, settings
from traincheck.trace.folder import RunFolder

POLL = 0.02
"""Seconds between two looks at whether the processes of a program have ended."""


def warm_up() -> None:
    """Prepare this process to fork programs. Nothing of TrainCheck is attached."""
    preload()
    import torch

    multiprocessing.set_start_method("fork", force=True)  # as programs find it; a spawned process passes its own on
    torch.set_num_threads(1)


def warm_pool(jobs: int) -> ProcessPoolExecutor:
    """Processes that are ready to fork, and have nothing else to do."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=warm_up)


def collect(
    words: Sequence[str],
    script: str,
    args: Sequence[str],
    home: Path,
    folder: Path,
    ranks: int,
    env: Mapping[str, str],
    verify_every: int = 0,
    what: str = "all",
) -> tuple[int, str]:
    """Do the work of `traincheck collect -o folder words` in forks; return the exit code and the output.

    One of `verify_every` steps is verified, none with 0. `what` is the value of `--record`.
    """
    before = Path.cwd()
    os.chdir(home)
    try:
        target, plain = Target.parse(words), config.load({"verify_every": str(verify_every), "record": what}, {}, home)
        run = RunFolder.create(folder, manifest(target, plain, "collect"))
        run_settings = settings(target, plain, folder.absolute(), "collect", ())
        run_settings.write(run_settings.file)
        session = str(run_settings.file.absolute())
        code, output = run_forked(
            script, args, home, ranks, {**env, child_processes.SESSION: session}, child_processes.attach
        )
        run.update(ended=now_in_words(), exit_code=code)
    finally:
        os.chdir(before)
    return code, output


def run_forked(
    script: str,
    args: Sequence[str],
    home: Path,
    ranks: int,
    env: Mapping[str, str],
    first: Callable[[], None],
    timeout: float = 300,
) -> tuple[int, str]:
    """Run a script in one fork for each rank, `first` called before it. The worst exit code, and what was written.

    A fork that takes longer than `timeout` seconds is killed.
    """
    log = home.with_name(home.name + ".log")
    log.write_bytes(b"")
    port = str(_free_port())
    pids = []
    for rank in range(ranks):
        variables = {**env, **(_of_rank(rank, ranks, port) if ranks > 1 else {})}
        pid = os.fork()
        if pid == 0:
            _run_here(script, args, home, variables, first, log)
        pids.append(pid)
    codes = _wait(pids, time.monotonic() + timeout)
    return max(codes), log.read_text(errors="replace")


def _of_rank(rank: int, ranks: int, port: str) -> dict[str, str]:
    """The variables that torchrun sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _run_here(
    script: str, args: Sequence[str], home: Path, env: Mapping[str, str], first: Callable[[], None], log: Path
) -> NoReturn:
    """In the fork: become the program, and end as it does. Never returns."""
    try:
        atexit._clear()  # what the parent wanted to do at its end is not ours
        atexit.register(multiprocessing.util._exit_function)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stream = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.setpgid(0, 0)
        os.environ.update(env)
        os.chdir(home)
        sys.argv, sys.path[0] = [script, *args], str(home)  # as the program finds them
        first()
        sys.path.pop(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    execute([script, *args])


def _wait(pids: Sequence[int], deadline: float) -> list[int]:
    """The exit codes of all; once one has failed or time is over, the others are killed."""
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = abs(os.waitstatus_to_exitcode(status))
        if any(codes.values()) or time.monotonic() > deadline:
            for pid in pids:
                if pid not in codes:
                    _kill(pid)
                    codes[pid] = 128 + signal.SIGKILL
        time.sleep(POLL)
    return list(codes.values())


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
