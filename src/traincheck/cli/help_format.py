"""Commands as --help tells them: arguments by their names alone, without the types that Python gives them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose usage reads `RUN...` and not `{RUN...}...`, and whose arguments are not told as `list[Path]`.

    How typer words these has changed from release to release; with this all of them say the same.
    """

    optional = "[{}]"
    """How an argument that may be left out stands in the usage."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage behind the name of the command."""
        return ["[OPTIONS]", *(self._told(param) for param in self._visible("argument"))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options."""
        rows = [(_name(param), param.help or "") for param in self._visible("argument")]
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        told = [record for record in (param.get_help_record(ctx) for param in options) if record is not None]
        for title, lines in (("Arguments", rows), ("Options", told)):
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def _visible(self, kind: str) -> list[Any]:
        return [param for param in self.params if param.param_type_name == kind and not getattr(param, "hidden", False)]

    def _told(self, param: Any) -> str:
        return _name(param) if param.required else self.optional.format(_name(param))


def _name(param: Any) -> str:
    return param.metavar or str(param.name).upper()
