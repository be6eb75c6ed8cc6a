"""Where a file lies in the repository that is checked: CI systems name files from its root."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

ROOT = "GITHUB_WORKSPACE"
"""The variable in which GitHub says where the root of the repository lies."""


def in_repository(file: str) -> str:
    """`file` from the root of the repository, with forward slashes; as it is where that is not known, or elsewhere.

    Files of a report are named from the directory in which the program was started, which is taken to be the present
    one where the name is relative.
    """
    root = os.environ.get(ROOT, "")
    if root:
        try:
            return Path(file).resolve().relative_to(Path(root).resolve()).as_posix()
        except (OSError, ValueError):  # it lies outside, or is no name of a file
            return file
    return str(PurePosixPath(file)) if file.startswith("./") else file
