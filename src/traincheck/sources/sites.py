"""Sites: where in the user's own code an observed call was made."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

_OURS = str(Path(__file__).resolve().parent.parent)


def qualified_name(code: CodeType) -> str:
    """The function's qualified name where this Python tells it (3.11 and later), else its name."""
    return str(getattr(code, "co_qualname", code.co_name))


class Sites:
    """Finds the nearest frame of the user's project on the stack, as `file:line:function`.

    A file belongs to the project when it lies under one of `project` and not in an environment below it
    (`site-packages`, the standard library). Paths are told relative to the working directory at the start.
    """

    def __init__(self, project: tuple[str, ...]) -> None:
        self._roots = tuple(str(Path(root).resolve()) for root in project)
        self._cwd = Path.cwd()
        self._files: dict[CodeType, str] = {}
        self._judged: dict[str, str] = {}  # by the name that code has of its file: to look at a path takes a while
        self._texts: dict[tuple[CodeType, int], str] = {}

    def file_of(self, code: CodeType) -> str:
        """The path to tell for `code`, empty when it is not of the project."""
        found = self._files.get(code)
        if found is None:
            name = code.co_filename
            if name not in self._judged:
                self._judged[name] = self._judge(name)
            found = self._files[code] = self._judged[name]
        return found

    def _judge(self, filename: str) -> str:
        if filename.startswith("<") or filename.startswith(_OURS):
            return ""
        path = Path(filename)
        absolute = path if path.is_absolute() else self._cwd / path
        text = str(absolute.resolve())
        if "site-packages" in text or "dist-packages" in text or text.startswith(sys.base_prefix + "/lib/python"):
            return ""
        if not any(text.startswith(root.rstrip("/") + "/") for root in self._roots):
            return ""
        try:
            return str(Path(text).relative_to(self._cwd.resolve()))
        except ValueError:
            return text

    def here(self) -> str:
        """The site of the nearest project frame above the caller, empty when there is none."""
        frame = sys._getframe(2)
        files = self._files
        while frame is not None:
            code = frame.f_code
            file = files.get(code)
            if file is None:
                file = self.file_of(code)
            if file:
                line = frame.f_lineno
                text = self._texts.get((code, line))
                if text is None:
                    text = self._texts[code, line] = f"{file}:{line}:{qualified_name(code)}"
                return text
            frame = frame.f_back  # type: ignore[assignment]
        return ""
