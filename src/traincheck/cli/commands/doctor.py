"""`traincheck doctor`: versions, and what can be observed here and what not, with the reason."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import typer

from traincheck.cli import flags
from traincheck.cli.console import columns, out, out_json
from traincheck.runtime.launching import child_processes
from traincheck.version import __version__

EPILOG = """\b
Examples:
  traincheck doctor
  traincheck doctor --json

Exit codes: 0 something can be observed, 1 nothing can.
"""

PACKAGES = ("torch", "pyarrow", "msgspec", "xxhash", "rich", "typer")
FRAMEWORKS = ("numpy", "transformers", "accelerate", "lightning", "deepspeed")
"""Named only where they are installed."""

PATIENCE = 180
"""Seconds that the import of torch may take; on a busy network file system it is minutes rather than seconds."""


def command(as_json: flags.AsJson = False) -> None:
    """Tell what can be observed here and what not.

    Versions, the accelerator, and each source of events with the reason where it is not available.
    """
    raise typer.Exit(doctor(as_json))


def doctor(as_json: bool = False) -> int:
    """Print it; 1 when nothing can be observed."""
    found = examine()
    if as_json:
        out_json(found)
    else:
        for line in lines(found):
            out(line)
    return 0 if found["observable"] else 1


def examine() -> dict[str, Any]:
    """All that is found out, as it is printed with --json."""
    probed = ask()
    sources = [{"name": name, "available": usable, "reason": why} for name, usable, why in probed["sources"]]
    return {
        "traincheck": __version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "platform": platform.platform(),
        "packages": {name: version(name) for name in (*PACKAGES, *FRAMEWORKS)},
        "accelerator": probed["accelerator"],
        "children_attach": probed["attached"],
        "sources": sources,
        "why": probed["why"],
        "observable": probed["attached"] and any(source["available"] for source in sources),
    }


def version(package: str) -> str | None:
    """The installed version, None where there is none."""
    from importlib import metadata  # here, for it is slow to import and only this command needs it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def ask() -> dict[str, Any]:
    """What the probe says in a child that is started as `traincheck run` starts programs."""
    found = {"attached": False, "accelerator": "", "sources": [], "why": ""}
    # An empty session is none: the bootstrap runs, which is to be seen, and nothing is recorded.
    environ = child_processes.environment(os.environ, "")
    argv = [sys.executable, "-m", "traincheck.cli.probe"]
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
        told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found | told
    except subprocess.TimeoutExpired:
        return found | {"why": f"importing torch took more than {PATIENCE} s"}
    except (OSError, ValueError, IndexError) as error:
        return found | {"why": f"a Python child could not be asked: {error}"}


def lines(found: dict[str, Any]) -> Iterable[str]:
    """The findings for people."""
    yield f"TrainCheck {found['traincheck']}, Python {found['python']} ({found['interpreter']}), {found['platform']}"
    yield "versions:"
    known = found["packages"]
    told = [(name, known[name] or "not installed") for name in PACKAGES]
    told += [(name, known[name]) for name in FRAMEWORKS if known[name]]
    yield from columns(told)
    yield f"accelerator: {found['accelerator'] or 'none found; CPU only'}"
    attach = "yes" if found["children_attach"] else "no: nothing can be observed through `traincheck run`"
    yield f"Python processes attach themselves: {attach}"
    yield "  (not those started with -I, -E or -S, or with another PYTHONPATH)"
    yield "what can be observed:"
    rows = [("yes" if one["available"] else "no", one["name"], one["reason"]) for one in found["sources"]]
    yield from columns(rows or [("no", "nothing", found["why"])])
    if rows and found["why"]:
        yield f"  {found['why']}"
