"""Commands that start the user's program: our options end where it begins, and all the rest is the program's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traincheck.cli.help_format import PlainCommand


def split(words: Sequence[str], with_value: frozenset[str]) -> tuple[list[str], list[str]]:
    """`words` as ours and the program's, which begin at the first script, `-m` or `--`.

    `with_value` are our flags that are followed by a value.
    """
    place = 0
    while place < len(words):
        word = words[place]
        module = word.startswith("-m") and not word.startswith("--")
        if word in ("-", "--") or module or not word.startswith("-"):
            break
        place += 2 if word in with_value else 1
    return list(words[:place]), list(words[place:])


class TargetCommand(PlainCommand):
    """A command whose arguments are a program and the program's own arguments, untouched (also `--help` and `-o`)."""

    optional = "{}"  # without a program there is nothing to do, which we say better than the parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command's, with the program's words out of reach of our options."""
        ours, program = split(args, frozenset(self._flags_with_value()))
        return super().parse_args(ctx, [*ours, "--", *program])

    def _flags_with_value(self) -> list[str]:
        options = [param for param in self.params if param.param_type_name == "option"]
        return [flag for option in options if not getattr(option, "is_flag", False) for flag in option.opts]
