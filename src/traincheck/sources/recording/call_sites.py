"""Sites: where in the user's own code an observed call was made."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from traincheck.vocab.bounded_cache import Kept, KeptOf

_OURS = str(Path(__file__).resolve().parents[2])
_TORCH = str(Path(torch.__file__).resolve().parent) + "/"
"""It may lie in the user's project: a checkout that torch was built in."""


def qualified_name(code: CodeType) -> str:
    """The function's qualified name where this Python tells it (3.11 and later), else its name."""
    name = str(getattr(code, "co_qualname", code.co_name))
    return name if ":" not in name else "<module>"  # IPython calls the code of a cell `<cell line: 1>`


def cell_of(filename: str) -> str:
    """The cell of a notebook that code is from, as people know it (`In[3]`); empty for code of a file.

    Source: IPython.core.compilerop.CachingCompiler.format_code_name.
    """
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(ask() if ask is not None else None, "compile", None)
    form = getattr(compiler, "format_code_name", None)  # older ones have none
    told = form(filename) if form is not None else None
    return str(told[1]) if told else ""


MOST_CODE = 20_000
"""Functions and places in them that are kept: a large program has some thousands, one that makes code has no end."""


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path


def _is_of_library(filename: str) -> bool:
    """Whether a file belongs to an installed library other than torch and TrainCheck (their paths are resolved)."""
    path = str(Path(filename).resolve())
    return _is_installed(path) and not path.startswith((_OURS, _TORCH))


class _Code(NamedTuple):
    """Code of the project: the path to tell for it, and the sites in it by their lines."""

    file: str
    sites: dict[int, str]


_UNKNOWN = _Code("", {})


class Sites:
    """Finds the nearest frame of the user's project on the stack, as `file:line:function`.

    A file belongs to the project when it lies under one of `project` and not in an environment below it
    (`site-packages`, the standard library). Paths are told relative to the working directory at the start. The cells
    of a notebook belong to it as well.
    """

    def __init__(self, project: tuple[str, ...]) -> None:
        self._roots = tuple(str(Path(root).resolve()) for root in project)
        self._cwd = Path.cwd()
        self._known: KeptOf[_Code | None] = KeptOf(MOST_CODE)  # None for code that is not of the project
        # By the name that code has of its file: to look at a path takes a while.
        self._judged: Kept[str, str] = Kept(MOST_CODE)
        self._libraries: Kept[str, bool] = Kept(MOST_CODE)

    def file_of(self, code: CodeType) -> str:
        """The path to tell for `code`, empty when it is not of the project."""
        found = self._known.get(id(code), _UNKNOWN)
        if found is _UNKNOWN:
            found = self._learn(code)
        return "" if found is None else found.file

    def _learn(self, code: CodeType) -> _Code | None:
        name = code.co_filename
        judged = self._judged.get(name)
        if judged is None:
            judged = self._judged.put(name, self._judge(name))
        return self._known.put_of(code, _Code(judged, {}) if judged else None)

    def _judge(self, filename: str) -> str:
        cell = cell_of(filename)
        if cell:
            return cell
        if filename.startswith("<") or filename.startswith(_OURS):
            return ""
        path = Path(filename)
        absolute = path if path.is_absolute() else self._cwd / path
        text = str(absolute.resolve())
        if _is_installed(text):
            return ""
        if text.startswith((sys.base_prefix + "/lib/python", _TORCH)):
            return ""
        if not any(text.startswith(root.rstrip("/") + "/") for root in self._roots):
            return ""
        try:
            return str(Path(text).relative_to(self._cwd.resolve()))
        except ValueError:
            return text

    def is_library_calling(self) -> bool:
        """Whether the nearest caller that is no code of torch's, Python's or ours is a library, not the project."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self.file_of(frame.f_code):
                return False
            name = frame.f_code.co_filename
            library = self._libraries.get(name)
            if library is None:
                library = self._libraries.put(name, _is_of_library(name))
            if library:
                return True
            frame = frame.f_back
        return False

    def here(self) -> str:
        """The site of the nearest project frame above the caller, empty when there is none."""
        return self.above(sys._getframe(2))

    def above(self, start: FrameType | None) -> str:
        """The site of the nearest project frame, from `start` on; empty when there is none."""
        frame, known = start, self._known
        while frame is not None:
            code = frame.f_code
            found = known.get(id(code), _UNKNOWN)
            if found is _UNKNOWN:
                found = self._learn(code)
            if found is not None:
                line = frame.f_lineno
                text = found.sites.get(line)
                if text is None:
                    text = found.sites[line] = f"{found.file}:{line}:{qualified_name(code)}"
                return text
            frame = frame.f_back
        return ""
