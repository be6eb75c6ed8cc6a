"""Checks a training in a notebook: `%load_ext traincheck`, and `%%traincheck` in the first line of a cell.

Interface: IPython's custom magics.
"""

from __future__ import annotations

import shlex
from typing import Any

from traincheck.errors import BadOption, TrainCheckError
from traincheck.runtime.observe import checked

OPTIONS = {"--book": "book", "-b": "book", "--packs": "packs", "--on-violation": "on_violation", "--budget": "budget"}
"""Options of the magic, each with a value, and the parameters of `traincheck.checked`."""


def load(shell: Any) -> None:
    """Register `%%traincheck` with IPython."""
    shell.register_magic_function(lambda line, cell: check_cell(shell, line, cell), "cell", "traincheck")


def check_cell(shell: Any, line: str, cell: str) -> None:
    """`%%traincheck [--book BOOK]... [--packs PACKS]... [--on-violation warn|stop] [--budget P%|1/K]`

    Runs the cell, checks its training as `traincheck run` does, and displays the report below the cell. The default
    rules are those of `traincheck run`.
    """
    observation = None
    try:
        with checked(name="notebook", **_options(line)) as observation:
            _run(shell, cell)
    except _CellFailed:
        pass  # IPython has displayed the error
    except TrainCheckError as error:
        print(f"traincheck: error [{error.slug}]: {error}")
        return
    if observation is not None and observation.report is not None:
        from IPython.display import display

        display(observation)


class _CellFailed(Exception):
    """The code of the cell raised."""


def _run(shell: Any, cell: str) -> None:
    """Run the cell under its displayed number and line numbers."""
    number = shell.execution_count
    # From IPython 9 on, the count is that of the next cell while a cell runs. The inputs are numbered from 1 in each.
    shell.execution_count = max(len(shell.user_ns["In"]) - 1, 1)
    try:
        result = shell.run_cell(f"# %%traincheck\n{cell}")
    finally:
        shell.execution_count = number
    if not result.success:
        raise _CellFailed


def _options(line: str) -> dict[str, Any]:
    """The options in the line of the magic. Raises BadOption."""
    options: dict[str, Any] = {"book": [], "packs": []}
    words = shlex.split(line)
    for flag, value in zip(words[::2], [*words[1::2], None], strict=False):
        name = OPTIONS.get(flag)
        if name is None or value is None:
            raise BadOption("%%traincheck", flag, "one of " + ", ".join(sorted(OPTIONS)) + ", each with a value")
        if name in ("book", "packs"):
            options[name].append(value)
        else:
            options[name] = value
    return options
