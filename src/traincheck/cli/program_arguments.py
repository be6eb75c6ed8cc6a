"""Commands that start the user's program: TrainCheck's options end where the program's words begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traincheck.cli.help_format import PlainCommand


def split(words: Sequence[str], with_value: frozenset[str]) -> tuple[list[str], list[str]]:
    """`words` as TrainCheck's and the program's; the program begins at the first script, `-m` or `--`.

    `with_value` are the flags that a value follows.
    """
    index = 0
    while index < len(words):
        word = words[index]
        module = word.startswith("-m") and not word.startswith("--")
        if word in ("-", "--") or module or not word.startswith("-"):
            break
        index += 2 if word in with_value else 1
    return list(words[:index]), list(words[index:])


class TargetCommand(PlainCommand):
    """A command whose arguments are a program and the program's own arguments, untouched (also `--help` and `-o`)."""

    optional = "{}"  # the command itself reports a missing program, better than the parser does

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as any command does, with the program's words out of reach of TrainCheck's options."""
        ours, program = split(args, frozenset(self._flags_with_value()))
        return super().parse_args(ctx, [*ours, "--", *program])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Completions of an option; none within the program's words, so that the shell completes files."""
        return [] if ctx.params.get("target") else list(super().shell_complete(ctx, incomplete))

    def _flags_with_value(self) -> list[str]:
        options = [param for param in self.params if param.param_type_name == "option"]
        return [flag for option in options if not getattr(option, "is_flag", False) for flag in option.opts]
