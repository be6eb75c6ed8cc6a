"""`traincheck doctor`: print versions, and which sources can observe training here."""

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
    """Show versions, and what can be observed here.

    It lists the accelerator and each source of events, with the reason if a source is not available.
    """
    raise typer.Exit(doctor(as_json))


def doctor(as_json: bool = False) -> int:
    """Print the diagnosis; 1 when nothing can be observed."""
    diagnosis = examine()
    if as_json:
        out_json(diagnosis)
    else:
        for line in lines(diagnosis):
            out(line)
    return 0 if diagnosis["observable"] else 1


def examine() -> dict[str, Any]:
    """The diagnosis, as --json prints it."""
    probed = run_probe()
    sources = [{"name": name, "available": usable, "reason": reason} for name, usable, reason in probed["sources"]]
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
    from importlib import metadata  # slow to import, and only this command needs it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run_probe() -> dict[str, Any]:
    """The output of the probe in a child that is started as `traincheck run` starts programs."""
    result = {"attached": False, "accelerator": "", "sources": [], "why": ""}
    # With an empty session the bootstrap runs, which the probe reports, and nothing is recorded.
    environ = child_processes.environment(os.environ, "")
    argv = [sys.executable, "-m", "traincheck.cli.probe"]
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
        output: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return result | output
    except subprocess.TimeoutExpired:
        return result | {"why": f"importing torch took more than {PATIENCE} s"}
    except (OSError, ValueError, IndexError) as error:
        return result | {"why": f"a Python child could not be started: {error}"}


def lines(diagnosis: dict[str, Any]) -> Iterable[str]:
    """The diagnosis for people."""
    python = f"Python {diagnosis['python']} ({diagnosis['interpreter']})"
    yield f"TrainCheck {diagnosis['traincheck']}, {python}, {diagnosis['platform']}"
    yield "versions:"
    installed = diagnosis["packages"]
    rows = [(name, installed[name] or "not installed") for name in PACKAGES]
    rows += [(name, installed[name]) for name in FRAMEWORKS if installed[name]]
    yield from columns(rows)
    yield f"accelerator: {diagnosis['accelerator'] or 'none found; CPU only'}"
    attach = "yes" if diagnosis["children_attach"] else "no: nothing can be observed through `traincheck run`"
    yield f"Python processes attach themselves: {attach}"
    yield "  (not those started with -I, -E or -S, or with another PYTHONPATH)"
    yield "what can be observed:"
    sources = [("yes" if row["available"] else "no", row["name"], row["reason"]) for row in diagnosis["sources"]]
    yield from columns(sources or [("no", "nothing", diagnosis["why"])])
    if sources and diagnosis["why"]:
        yield f"  {diagnosis['why']}"
