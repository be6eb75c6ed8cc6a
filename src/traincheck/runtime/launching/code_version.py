"""The version of the user's code before a run: the commit, and digests of the program's own files."""

from __future__ import annotations

import re
from pathlib import Path

from traincheck.files import read_bounded

_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_LARGEST = 1 << 22
"""Bytes of a file of a Git repository that is read; `packed-refs` of a large project has some megabytes."""


def commit_of(folder: Path) -> str:
    """The commit that is checked out around `folder`, or an empty text.

    It reads files of the repository and starts no `git`, which can take seconds in a large one.
    """
    try:
        for around in (folder.resolve(), *folder.resolve().parents):
            if (around / ".git").exists():
                return _head(_repository(around / ".git"))
    except (OSError, ValueError):
        pass
    return ""


def _repository(mark: Path) -> Path:
    """The folder of the repository; in a worktree or a submodule, `.git` is a file with its path."""
    if mark.is_dir():
        return mark
    return mark.parent / _text(mark).removeprefix("gitdir:").strip()


def _head(repository: Path) -> str:
    head = _text(repository / "HEAD")
    name = head.removeprefix("ref:").strip()
    if name == head:  # detached
        return _checked(head)
    common = repository / "commondir"  # of a worktree, which shares its branches
    shared = repository / _text(common) if common.exists() else repository
    for home in (repository, shared):
        if (home / name).is_file():
            return _checked(_text(home / name))
    for line in _text(shared / "packed-refs").splitlines():
        commit, _, packed_name = line.partition(" ")
        if packed_name == name:
            return _checked(commit)
    return ""


def _checked(text: str) -> str:
    return text if _HASH.fullmatch(text) else ""


def _text(path: Path) -> str:
    return read_bounded(path, _LARGEST).decode("utf-8", "replace").strip()
