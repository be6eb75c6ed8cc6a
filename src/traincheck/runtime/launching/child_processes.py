"""How the Python processes of a run attach themselves: one environment variable and a folder on PYTHONPATH.

Note [Children attach themselves]. The bootstrap folder holds a `sitecustomize`, which Python imports at its start. It
takes its folder off `sys.path`, arms a hook on the import of torch and gives way to the `sitecustomize` that it
shadows. Both variables are inherited, so workers that the program starts attach in the same way; a process that never
imports torch pays for a few small modules. Known limitations: a Python that was told to ignore the environment or site
(`-I`, `-E`, `-S`), or whose PYTHONPATH was replaced on the way, stays unobserved.
"""

from __future__ import annotations

import os

from traincheck.runtime.launching.import_hooks import when_imported
from traincheck.runtime.stderr_log import log_warning

TYPE_CHECKING = False  # as in typing, see import_hooks.py
if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION = "TRAINCHECK_SESSION"
SEARCH_PATH = "PYTHONPATH"
BOOTSTRAP = __file__.rpartition(os.sep)[0] + os.sep + "bootstrap"
"""The folder that goes on PYTHONPATH. (No pathlib here: it would cost every child more than all the rest.)"""


def environment(base: Mapping[str, str], session: str | os.PathLike[str]) -> dict[str, str]:
    """`base` with what makes every Python child attach to the run whose settings lie in `session` (absolute)."""
    children = detached(base)
    before = children.get(SEARCH_PATH)
    children[SEARCH_PATH] = BOOTSTRAP + os.pathsep + before if before else BOOTSTRAP
    children[SESSION] = os.fspath(session)
    return children


def detached(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without it, for a process of ours that is not to be observed."""
    plain = {name: value for name, value in base.items() if name != SESSION}
    if BOOTSTRAP in plain.get(SEARCH_PATH, ""):
        rest = [entry for entry in plain[SEARCH_PATH].split(os.pathsep) if entry != BOOTSTRAP]
        plain[SEARCH_PATH] = os.pathsep.join(rest)
    if plain.get(SEARCH_PATH) == "":
        del plain[SEARCH_PATH]
    return plain


def attach() -> None:
    """Observe this process once it has imported torch, if the environment names a session. Called by the bootstrap."""
    session = os.environ.get(SESSION)
    if session:
        when_imported("torch", lambda: start(session))


def start(session: str) -> None:
    """Start observing this process. What goes wrong costs the user's program one line on stderr, nothing else."""
    try:
        from traincheck.runtime.launching.run_settings import Settings
        from traincheck.runtime.process_session import start as start_session

        start_session(Settings.read(session))
    except Exception as error:
        log_warning(f"this process is not observed: {type(error).__name__}: {error}")
