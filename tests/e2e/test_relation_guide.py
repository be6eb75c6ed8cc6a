"""The code of docs/extend/relations.md runs."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extend" / "relations.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_guide() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    parts = BLOCK.findall(text)
    assert len(parts) >= 4
    names: dict[str, object] = {}
    for match in BLOCK.finditer(text):
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(GUIDE), "exec"), names)
