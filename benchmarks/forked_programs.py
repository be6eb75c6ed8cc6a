"""Forks of a process that has already imported torch become Python programs.

Note [Warm starts]
Of five seconds that a short program takes to start and train, the import of torch and the compiler behind the first
optimizer take three and a half. So a process imports these once and forks for each program. A fork gets what the
command line would give it: arguments, `sys.path`, `__main__`, streams, random seeds, and the end of a Python process.
The benchmarks start their programs in this way (benchmarks/detection/warm.py), and the tests their commands
(tests/warm_commands.py). `--cold` starts every program by its command line instead, and tests compare the two. The
process that forks has to be young: threads of its own would be missing in its forks, and their locks would stay closed.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import multiprocessing.process
import os
import random
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from traincheck.cli.main import RARE_COLLECTION

AS_USUAL = gc.get_threshold()
"""The default thresholds of the garbage collector."""


def preload() -> None:
    """Import what the programs need, in a process that is going to fork them. TrainCheck does not attach."""
    import numpy  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.utils.data  # noqa: F401

    import traincheck.checking.live
    import traincheck.runtime.session
    import traincheck.sources.registry  # noqa: F401

    gc.collect()
    gc.freeze()  # else each fork's collector looks through all of it, and copies its pages by doing so
    gc.set_threshold(*RARE_COLLECTION)


def execute(words: Sequence[str]) -> NoReturn:
    """In a fork: do what `python WORDS` does in this working directory and environment, and end as it does.

    `words` are a script with its arguments, or `-m`, a module and its arguments. Known limitation: the process ends
    without deleting its objects, so that it runs no `__del__` of objects that still exist.
    """
    interrupted = False
    try:
        _renew()
        code = _run(words)
    except SystemExit as end:
        code = _code_of(end)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        trace = _without_this_file(error.__traceback__)
        # Python keeps the exception that ended a program, and exit handlers look there.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code & 0xFF)


def _renew() -> None:
    """Give this fork what each Python process has for itself."""
    import numpy
    import torch

    gc.set_threshold(*AS_USUAL)
    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # where a spawned child looks for the script


def _run(words: Sequence[str]) -> int:
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.orig_argv = [sys.executable, *words]
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return 0
    file = str(Path.cwd() / words[0])
    main.__file__, main.__loader__ = file, SourceFileLoader("__main__", file)
    vars(main)["__cached__"] = None
    sys.argv = list(words)
    sys.path.insert(0, str(Path(file).resolve().parent))
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), vars(main))
    return 0


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _without_this_file(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
