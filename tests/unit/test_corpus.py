"""The corpus generator: parts render for any choice, programs depend on the seed alone, and runs are judged."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks.corpus.choices import Draws
from benchmarks.corpus.running import PlainRun
from benchmarks.corpus.writing import code, names_of, program_text, write

PARTS = [
    *({"task": name, "loop": "flat"} for name in names_of("tasks")),
    *({"loop": name} for name in names_of("loops")),
    *({"program": name} for name in names_of("programs")),
]


@pytest.mark.parametrize("only", PARTS, ids=lambda only: "-".join(only.values()))
def test_every_part_renders_as_python(only: dict[str, str]) -> None:
    for seed in range(40, 48):
        chosen, text = program_text(seed, only=only)
        ast.parse(text)
        assert {chosen.task or only.get("task", ""), chosen.loop or only.get("loop", ""), chosen.program} >= set(
            only.values()
        )


@pytest.mark.parametrize("name", names_of("optimizers"))
def test_every_optimizer_is_drawn(name: str) -> None:
    assert any(program_text(seed, only={"task": "mlp", "loop": "flat"})[0].optimizer == name for seed in range(400))


def test_a_seed_always_gives_the_same_readable_program(tmp_path: Path) -> None:
    write(range(70, 76), tmp_path / "first")
    write(reversed(range(70, 76)), tmp_path / "second")
    texts = [file.read_text() for file in sorted((tmp_path / "first").iterdir())]
    assert texts == [file.read_text() for file in sorted((tmp_path / "second").iterdir())]
    assert len(set(texts)) == len(texts)
    for text in texts:
        assert text.startswith('"""') and "{{" not in text and "{%" not in text
        assert max(map(len, text.splitlines())) <= 140


def test_a_draw_depends_on_its_name_alone() -> None:
    first, second = Draws(3), Draws(3)
    assert [first.pick("a", range(100)), first.pick("b", range(100))] == list(
        reversed([second.pick("b", range(100)), second.pick("a", range(100))])
    )
    assert first.pick("a", range(100)) == first.pick("a", [])  # drawn once


def test_empty_statements_leave_no_line() -> None:
    assert code("\n\n") == code("") == "\0"
    assert code("a = 1\nif a:\n    b = 2\n", 4) == "a = 1\n    if a:\n        b = 2"


@pytest.mark.parametrize(
    ("output", "code_", "trained"),
    [
        ("epoch 0: loss 2.0\nepoch 1: loss 1.0\n", 0, True),
        ("epoch 0: loss 1.0\nepoch 1: loss 2.0\n", 0, False),
        ("Epoch: 1\tLoss: 1.0\tscore: 0.2\nEpoch: 2\tLoss: 1.5\tscore: 0.4\n", 0, True),
        ("loss=1.0\nloss=nan\n", 0, False),
        ("loss 1.0\n", 0, False),
        ("loss 2.0\nloss 1.0\n", 1, False),
    ],
)
def test_a_sound_run_learns_something(output: str, code_: int, trained: bool) -> None:
    assert (PlainRun(code_, 1.0, output).problem == "") is trained
