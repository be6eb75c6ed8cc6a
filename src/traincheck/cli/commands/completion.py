"""`traincheck completion`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Optional

import typer

from traincheck.cli.console import out
from traincheck.cli.program_arguments import TargetCommand, split
from traincheck.errors import BadOption
from traincheck.options import OPTIONS

EPILOG = """\b
Examples:
  source <(traincheck completion bash)
  traincheck completion bash > ~/.local/share/bash-completion/completions/traincheck
  traincheck completion zsh > ~/.zfunc/_traincheck
  traincheck completion fish > ~/.config/fish/completions/traincheck.fish

For zsh, ~/.zfunc has to be in fpath before compinit is called, in ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit &&
compinit. A new shell completes then: commands, options, and values where there is a choice; else files. The words of
the program that follows `run` or `collect` are completed as files.
"""

BASH = r"""
_traincheck() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\t'*}")
    done < <(traincheck completion words -- "$COMP_CWORD" "${COMP_WORDS[@]:1}" 2>/dev/null)
}
complete -o bashdefault -o default -F _traincheck traincheck
"""

ZSH = r"""
#compdef traincheck
_traincheck() {
    local -a found
    found=(${(f)"$(traincheck completion words -- $((CURRENT - 1)) "${(@)words[2,-1]}" 2>/dev/null)"})
    if (( $#found )); then
        found=(${found//$'\t'/:})
        _describe -V 'traincheck' found
    else
        _files
    fi
}
if [[ $funcstack[1] == _traincheck ]]; then
    _traincheck "$@"
else
    compdef _traincheck traincheck
fi
"""

FISH = r"""
function __traincheck_words
    set -l before (commandline -opc)
    traincheck completion words -- (count $before) $before[2..-1] (commandline -ct) 2>/dev/null
end
complete --command traincheck --arguments '(__traincheck_words)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
WORDS = "words"
"""What the scripts ask: `traincheck completion words -- PLACE WORD...`, with the place of the word to complete."""

Shell = Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SCRIPTS)}.", show_default=False)]
Asked = Annotated[Optional[list[str]], typer.Argument(hidden=True)]  # noqa: UP045


def command(shell: Shell, asked: Asked = None) -> None:
    """Print a script that makes a shell complete `traincheck`."""
    if shell == WORDS:
        place, *words = asked or ["1"]
        for line in lines(words[: int(place)], int(place) - 1):
            out(line)
        return
    if shell not in SCRIPTS or asked:
        raise BadOption("SHELL", shell, f"one of {', '.join(SCRIPTS)}")
    out(SCRIPTS[shell].strip())


def lines(words: Sequence[str], place: int) -> Iterator[str]:
    """What may stand at `place` of the words after `traincheck`: a value, and after a tab what it means.

    Nothing where a file may stand, which shells complete by themselves.
    """
    current = words[place] if place < len(words) else ""
    for value, meaning in candidates(words[:place], current):
        if value.startswith(current):
            yield f"{value}\t{meaning}" if meaning else value


def candidates(before: Sequence[str], current: str) -> list[tuple[str, str]]:
    """All that may follow the words `before`, whatever `current` begins with."""
    from typer.main import get_command

    from traincheck.cli.main import COMMANDS, app

    name = next((word for word in before if not word.startswith("-")), "")
    here: Any = get_command(app((name,) if name in COMMANDS else ()))
    if name not in COMMANDS:
        if name:
            return []
        return _flags(here) if current.startswith("-") else [(each, "") for each in COMMANDS]
    here, rest = here.commands[name], list(before[list(before).index(name) + 1 :])
    if hasattr(here, "commands"):
        if not rest or rest[0] not in here.commands:
            return [] if rest else [(each, _first(inner.help)) for each, inner in here.commands.items()]
        here, rest = here.commands[rest[0]], rest[1:]
    return _of_command(here, rest, current)


def _of_command(here: Any, before: Sequence[str], current: str) -> list[tuple[str, str]]:
    options = [param for param in here.params if param.param_type_name == "option"]
    with_value = frozenset(flag for param in options if not param.is_flag for flag in param.opts)
    if isinstance(here, TargetCommand) and split(before, with_value)[1]:
        return []  # it is the program's
    if before and before[-1] in with_value:
        return [(choice, "") for choice in _choices(before[-1])]
    if current.startswith("-"):
        return _flags(here)
    return [(shell, "") for shell in SCRIPTS] if here.name == "completion" and not before else []


def _flags(here: Any) -> list[tuple[str, str]]:
    shown = [param for param in here.params if param.param_type_name == "option" and not param.hidden]
    return [
        *((flag, _first(param.help)) for param in shown for flag in param.opts if flag.startswith("--")),
        ("--help", "Show this message and exit"),
    ]


def _choices(flag: str) -> tuple[str, ...]:
    return next((option.choices for option in OPTIONS.values() if flag in option.flags and option.choices), ())


def _first(text: str | None) -> str:
    """The first sentence."""
    line = (text or "").strip().partition("\n")[0]
    return min((line.partition(end)[0] for end in (". ", " (", ": ", "; ")), key=len).rstrip(".")
