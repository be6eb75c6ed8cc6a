"""watched.py CASE_FOLDER SCRIPT OUT ARGS...: run the script of a case as Python would, watched by its effect.py."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def effect_of(folder: Path) -> ModuleType:
    """The module `effect.py` of a case."""
    spec = importlib.util.spec_from_file_location(f"effect_{folder.name.replace('-', '_')}", folder / "effect.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path, script: str, out: Path, args: list[str]) -> None:
    """Hook, then run. What was observed goes to `out`, a JSON line each, in a file for each rank."""
    with (out / f"{os.environ.get('RANK', '0')}.jsonl").open("a") as file:

        def record(**observed: Any) -> None:
            file.write(json.dumps(observed) + "\n")
            file.flush()

        sys.path[0] = str(Path.cwd())
        sys.argv = [script, *args]
        effect_of(folder).watch(record)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
