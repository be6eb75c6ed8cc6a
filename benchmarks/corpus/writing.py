"""Writes programs of the corpus: templates of parts, joined by the choices of a seed, formatted by ruff."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.corpus.choices import Choices, Draws, draw

TEMPLATES = Path(__file__).with_name("templates")
LOOPS_IN_RANKS = ("ddp",)


EMPTY = "\0"
"""Stands in a line of a template for statements that a program does not have; the line is removed."""


def code(text: str, width: int = 0) -> str:
    """The filter `code(width)`: statements that a macro made, indented like the line that they are put in."""
    lines = [line for line in text.strip("\n").rstrip().splitlines() if line.strip() != EMPTY]
    return ("\n" + " " * width).join(lines) if any(line.strip() for line in lines) else EMPTY


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = code
    return environment


ENVIRONMENT = _environment()


def names_of(folder: str) -> list[str]:
    """The parts of a kind: the templates of a folder."""
    return sorted(file.stem for file in (TEMPLATES / folder).glob("*.j2") if "." not in file.stem)


def _exports(template: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """What a template sets at its top."""
    module = ENVIRONMENT.get_template(template).make_module(dict(context))
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def choose(seed: int, *, only: Mapping[str, str] | None = None) -> tuple[Choices, dict[str, Any]]:
    """The choices of a seed and the context that its templates get. `only` fixes the program, the loop or the task."""
    fixed = dict(only or {})
    draws = Draws(seed)
    programs, loops, tasks = names_of("programs"), names_of("loops"), names_of("tasks")
    whole = bool(programs) and draws.maybe("choice.whole", len(programs) / (len(programs) + len(tasks)))
    program = fixed.get("program", draws.pick("choice.program", programs) if whole and not fixed else "")
    task = "" if program else fixed.get("task") or draws.pick("choice.task", tasks)
    loop = "" if program else fixed.get("loop") or draws.pick("choice.loop", loops)
    # The templates set at their top what they support; sizes that are drawn there do not depend on the choices.
    context: dict[str, Any] = {"pick": draws.pick, "maybe": draws.maybe, "seed": seed}
    supports: dict[str, Any] = {}
    for template in filter(
        None,
        (
            task and f"tasks/{task}.j2",
            loop and f"loops/{loop}.supports.j2",
            program and f"programs/{program}.supports.j2",
        ),
    ):
        if (TEMPLATES / template).exists():
            supports = _joined(supports, _exports(template, {**context, "c": None}).get("supports", {}))
    chosen = draw(draws, supports, loop, task, program, names_of("optimizers"))
    lr = _exports(f"optimizers/{chosen.optimizer}.j2", context)["lr"] * supports.get("lr_scale", 1)
    context["c"] = chosen = replace(chosen, lr=float(f"{lr:.3g}"))
    return chosen, context


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """What both support: a list is met with a list, a switch has to be on in each that names it."""
    joined = dict(first)
    for name, value in second.items():
        if isinstance(value, list | tuple) and name in joined:
            joined[name] = [entry for entry in joined[name] if entry in value] or list(value)
        elif isinstance(value, bool) and name in joined:
            joined[name] = joined[name] and value
        else:
            joined[name] = value
    return joined


def program_text(seed: int, *, only: Mapping[str, str] | None = None) -> tuple[Choices, str]:
    """The choices of a seed and the text of its program, not yet formatted."""
    chosen, context = choose(seed, only=only)
    parts = {
        name: ENVIRONMENT.get_template(f"{name}.j2").make_module(dict(context)) for name in ("common", "data", "step")
    }
    parts["schedule"] = ENVIRONMENT.get_template("schedules.j2").make_module(dict(context))
    parts["optimizer"] = ENVIRONMENT.get_template(f"optimizers/{chosen.optimizer}.j2").make_module(dict(context))
    if chosen.task:
        parts["task"] = ENVIRONMENT.get_template(f"tasks/{chosen.task}.j2").make_module(dict(context))
    main = f"programs/{chosen.program}.j2" if chosen.program else f"loops/{chosen.loop}.j2"
    text = ENVIRONMENT.get_template(main).render({**context, **parts})
    text = "".join(line for line in text.splitlines(keepends=True) if EMPTY not in line)
    try:
        ast.parse(text)
    except SyntaxError as error:
        lines = text.splitlines()
        near = "\n".join(lines[max(0, (error.lineno or 1) - 4) : (error.lineno or 1) + 3])
        raise ValueError(
            f"program {seed} ({chosen.program or chosen.loop + ' ' + chosen.task}): {error}\n{near}"
        ) from error
    return chosen, text.lstrip()


def write(seeds: Iterable[int], folder: Path, *, only: Mapping[str, str] | None = None) -> dict[int, Choices]:
    """Write the programs of `seeds` as `folder/SEED.py` (`SEED` has five digits), formatted, without unused imports."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for seed in seeds:
        chosen, text = program_text(seed, only=only)
        (folder / f"{seed:05d}.py").write_text(re.sub(r"\n{4,}", "\n\n\n", text))
        written[seed] = chosen
    ruff = [sys.executable, "-m", "ruff"]
    files = [str(folder / f"{seed:05d}.py") for seed in written]
    options = ["--isolated", "--line-length", "120", "-q"]
    subprocess.run([*ruff, "check", *options, "--select", "F401,I001", "--fix", "--exit-zero", *files], check=True)
    subprocess.run([*ruff, "format", *options, *files], check=True)
    return written
