"""Attaches TrainCheck to every Python process of a run, through one environment variable and a folder on PYTHONPATH.

Note [Children attach themselves]. The bootstrap folder holds a `sitecustomize`, which Python imports at start-up. It
removes its folder from `sys.path`, hooks the imports of torch and JAX and imports the `sitecustomize` that it shadows.
Workers inherit both variables, so they attach in the same way. A process that never imports either only loads a few
small modules, unless it marks values (see `_first_mark`).

Known limitations: TrainCheck does not observe a Python process that ignores the environment or site (`-I`, `-E`, `-S`).
It does not observe a process whose PYTHONPATH was replaced either.
"""

from __future__ import annotations

import os
import sys

from traincheck.runtime.launching.import_hooks import when_imported
from traincheck.runtime.marks import mark, receive
from traincheck.runtime.stderr_log import log_warning

TYPE_CHECKING = False  # as in typing, see import_hooks.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

SESSION = "TRAINCHECK_SESSION"
FRAMEWORKS = ("torch", "jax")
SEARCH_PATH = "PYTHONPATH"
BOOTSTRAP = __file__.rpartition(os.sep)[0] + os.sep + "bootstrap"
"""The folder to put on PYTHONPATH. (An import of pathlib would take longer than everything else here.)"""


def environment(base: Mapping[str, str], session: str | os.PathLike[str]) -> dict[str, str]:
    """`base` plus the variables that attach every Python child to the run with the settings in `session` (absolute)."""
    children = detached(base)
    before = children.get(SEARCH_PATH)
    children[SEARCH_PATH] = BOOTSTRAP + os.pathsep + before if before else BOOTSTRAP
    children[SESSION] = os.fspath(session)
    return children


def detached(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without these variables, for a process that TrainCheck must not observe."""
    plain = {name: value for name, value in base.items() if name != SESSION}
    if BOOTSTRAP in plain.get(SEARCH_PATH, ""):
        rest = [entry for entry in plain[SEARCH_PATH].split(os.pathsep) if entry != BOOTSTRAP]
        plain[SEARCH_PATH] = os.pathsep.join(rest)
    if plain.get(SEARCH_PATH) == "":
        del plain[SEARCH_PATH]
    return plain


def attach() -> None:
    """Observe this process once it has imported torch or JAX, if the environment names a session. Called by the
    bootstrap."""
    session = os.environ.get(SESSION)
    if not session:
        return
    hooks: list[Callable[[], None]] = []

    def imported() -> None:
        for remove in hooks:  # first, as the session imports torch, and waits for JAX by itself
            remove()
        start(session)

    hooks += [when_imported(name, imported) for name in FRAMEWORKS]
    if not any(name in sys.modules for name in FRAMEWORKS):
        receive(lambda name, value, gradient: _first_mark(session, name, value, gradient))


def _first_mark(session: str, name: Any, value: Any, gradient: Any) -> None:
    """Import torch in a program that does not (of NumPy), as it computes the sketches of marks. That starts the
    session."""
    receive(None)
    try:
        from traincheck.runtime.launching.run_settings import Settings

        if Settings.read(session).record != "operations":
            return
        import torch  # noqa: F401
    except Exception as error:
        log_warning(f"marks are not recorded, as torch cannot be imported: {type(error).__name__}: {error}")
        return
    mark(name, value, gradient=gradient)


def start(session: str) -> None:
    """Start observing this process. An error costs your program one line on stderr, and nothing else."""
    receive(None)  # the session takes the marks from now on
    try:
        from traincheck.runtime.launching.run_settings import Settings
        from traincheck.runtime.process_session import start as start_session

        start_session(Settings.read(session))
    except Exception as error:
        log_warning(f"this process is not observed: {type(error).__name__}: {error}")
