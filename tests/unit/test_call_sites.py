"""The names that call sites give to functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from traincheck.sources.recording import call_sites


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Model:
    class Block:
        def forward(self) -> Callable[[], int]:
            @passed_on
            @functools.cache
            def inner() -> int:
                return 1

            return inner

    @staticmethod
    @passed_on
    def build() -> None: ...

    if True:

        async def load(self) -> None: ...


def codes(code: CodeType) -> list[CodeType]:
    """All named functions inside `code`."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [entry for nested in inside for entry in (nested, *codes(nested))]


def test_the_source_gives_the_names_that_later_pythons_keep() -> None:
    """Python 3.10 keeps no qualified names, so they come from the source."""
    expected = {
        "Model.Block.forward": Model.Block.forward.__code__,
        "Model.Block.forward.<locals>.inner": codes(Model.Block.forward.__code__)[0],
        "Model.build": Model.build.__code__,
        "Model.load": Model.load.__code__,
        "passed_on": passed_on.__code__,
    }
    names = {name: call_sites._qualified_name_in_source(code) for name, code in expected.items()}
    assert names == {name: name for name in expected}
    assert {name: call_sites.qualified_name(code) for name, code in expected.items()} == names


@pytest.mark.parametrize("text", ["def step(:\n", ""])
def test_code_without_a_readable_source_keeps_its_plain_name(text: str, tmp_path: Any) -> None:
    file = tmp_path / "script.py"
    file.write_text(text)
    namespace: dict[str, Any] = {}
    exec(compile("def step():\n    pass\n", str(file), "exec"), namespace)
    assert call_sites._qualified_name_in_source(namespace["step"].__code__) == "step"
