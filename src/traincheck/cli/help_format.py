"""The layout of --help: arguments by their names, and the options of a long command under headings."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from traincheck.options import GROUPS

LONG = 12
"""Options from which on a command shows them under headings."""
OPTIONS_HEADING = "Options"


class PlainCommand(TyperCommand):
    """A command whose usage reads `RUN...` and not `{RUN...}...`, whichever release of typer is installed."""

    optional = "[{}]"
    """The form of an optional argument in the usage."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage after the name of the command."""
        return ["[OPTIONS]", *(self._usage_of(param) for param in self._visible("argument"))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options."""
        arguments = [(_name(param), param.help or "") for param in self._visible("argument")]
        for title, rows in (("Arguments", arguments), *self._option_sections(ctx).items()):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _option_sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        rows = [(param, row) for param in options if (row := param.get_help_record(ctx)) is not None]
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*GROUPS, OPTIONS_HEADING)}
        for param, row in rows:
            group = getattr(param, "rich_help_panel", None) or GROUPS[0]
            sections[group if len(rows) > LONG else OPTIONS_HEADING].append(row)
        return sections

    def _visible(self, kind: str) -> list[Any]:
        return [param for param in self.params if param.param_type_name == kind and not getattr(param, "hidden", False)]

    def _usage_of(self, param: Any) -> str:
        return _name(param) if param.required else self.optional.format(_name(param))


def _name(param: Any) -> str:
    return param.metavar or str(param.name).upper()
