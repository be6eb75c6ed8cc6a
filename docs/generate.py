"""Writes the reference pages from the source: `make docs`. With --check it only says which of them are out of date."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

import traincheck
from traincheck import errors
from traincheck.cli.main import app
from traincheck.options import OPTIONS, Option
from traincheck.runtime.observe import Observation
from traincheck.testing.conformance import check_relation
from traincheck.testing.readable_traces import from_text, to_text
from traincheck.vocab.events import STAGES
from traincheck.vocab.facts import FACTS
from traincheck.vocab.finding import REPORT_VERSION, Cost, Counts, Finding, Parting, RankState, Site

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTE = "<!-- Written by docs/generate.py from the source; change it there and run `make docs`. -->\n"
BEGIN, END = "<!-- slugs: begin -->\n", "<!-- slugs: end -->\n"

REPORT_FIELDS: dict[type, dict[str, str]] = {
    Finding: {
        "severity": "`error` (fails a run) or `notice` (does not)",
        "step": "training step in which it was first seen; 0 is the set-up",
        "rank": "rank of the process in which it was first seen; the first of all where ranks were compared",
        "title": "the finding in a few words",
        "cause": "the likely cause, in one or two sentences; may be empty",
        "site": "the place in the user's code, see below; null where none is known",
        "variables": "names of the parameters, gradients or buffers concerned",
        "expected": "what should have happened: the leading invariant",
        "observed": "what happened instead",
        "advice": "what to look at, the likeliest first",
        "invariants": "ids of the invariants behind the finding, the leading one first",
        "last_step": "the last step in which it was seen",
        "times": "in how many windows the most violated of its invariants failed",
        "ranks": "where ranks were compared: those that differ from most, or all that differ where no majority agrees; "
        "else those on which it is so",
        "compared": "how many ranks were compared; 0 where each was judged by itself",
    },
    Site: {
        "file": "path, relative to the directory in which the program was started where it lies below it",
        "line": "line number",
        "function": "qualified name of the function",
    },
    Counts: {
        "invariants": "invariants of the book that were deployed on this program",
        "passed": "held on every occasion there was",
        "violated": "failed on at least one occasion",
        "not_triggered": "never had an occasion",
        "not_observed": "could not be judged, because what they need was not observed",
        "muted": "muted in the book, and not deployed",
        "errors": "findings of severity error",
        "notices": "findings of severity notice",
        "steps": "training steps seen",
        "windows": "windows seen, all processes together",
        "windows_dropped": "windows that were left out because writing could not keep up",
        "processes": "processes in which training was observed",
    },
    Cost: {
        "steps": "training steps of the process that made the most",
        "watched": "how many of these were watched",
        "seconds": "how long the processes ran, all together",
        "sources": "seconds that watching took on the threads of the program, by source",
        "background": "seconds of CPU time of the thread beside them, by what it did",
    },
    RankState: {
        "rank": "number of the rank",
        "job": "the job that it is of; an elastic job that starts again is another one",
        "end": "`ended`, `killed` (it ended without a word), `stopped recording` (it trained on), `left no recording`, "
        "or `not ended`, where the run goes on or was killed as a whole",
        "steps": "training steps, as far as they are known",
        "windows": "windows, as far as they are known",
        "recorded": "the last step in its recording",
        "compared": "the last step in which it was set against the other ranks; null where it was not",
        "apart": "the first step in which ranks were not as they should be, and it was one of those concerned; or null",
        "what": "what was so then: `gradients differ`, `collectives differ`, `batches are the same` ...",
    },
    Parting: {
        "job": "the job",
        "step": "the first step in which its ranks were not as they should be",
        "what": "what was so then: `gradients differ`, `collectives differ`, `batches are the same` ...",
        "ranks": "those that differ from most; all that differ where no majority agrees",
        "compared": "how many ranks were compared; most agree where `ranks` are fewer than half of them",
    },
}


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    reference = DOCS / "reference"
    return {
        reference / "cli.md": "".join(cli()),
        reference / "options.md": "".join(options()),
        reference / "report-json.md": "".join(report_json()),
        reference / "facts.md": "".join(facts()),
        reference / "python.md": "".join(python()),
        DOCS / "messages.md": messages((DOCS / "messages.md").read_text(encoding="utf-8")),
    }


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


# -- commands ------------------------------------------------------------------------------------------------------


def cli() -> Iterator[str]:
    """The commands, as their own --help tells them."""
    group: Any = get_command(app())
    yield f"# Commands\n\n{NOTE}\n"
    yield f"{group.help.strip()}\n\n```\n{_plain(group.epilog)}\n```\n\n"
    yield "Options before the command:\n\n" + _params(group, "option")
    for name, command in leaves(group):
        usage = " ".join([name, "[OPTIONS]", *(p.metavar or p.name.upper() for p in _of(command, "argument"))])
        yield f"## traincheck {name}\n\n{inspect.cleandoc(command.help)}\n\n```\ntraincheck {usage}\n```\n\n"
        yield _params(command, "argument") + _params(command, "option")
        yield f"```\n{_plain(command.epilog)}\n```\n\n"


def leaves(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands that do something, by all of their words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _of(command: Any, kind: str) -> list[Any]:
    return [
        param
        for param in command.params
        if param.param_type_name == kind and param.name != "help" and not getattr(param, "hidden", False)
    ]


def _params(command: Any, kind: str) -> str:
    rows = [(_named(param), param.help) for param in _of(command, kind)]
    return table((kind, "meaning"), *rows) if rows else ""


def _named(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`"
    value = f" {param.metavar}" if param.metavar else ""
    return ", ".join(f"`{flag}{value}`" for flag in param.opts)


def _plain(epilog: str) -> str:
    return epilog.replace("\b\n", "").strip()


# -- options -------------------------------------------------------------------------------------------------------


def options() -> Iterator[str]:
    """The option table."""
    yield f"# Options\n\n{NOTE}\n"
    yield (
        "An option is stated once, in `src/traincheck/options/`. The shared ones may be given as a flag, as an "
        "environment variable, or as a key of `[tool.traincheck]` in the nearest `pyproject.toml`; the first of these "
        "that says anything wins. A list in a variable is separated by commas, a list of paths by the separator of "
        "`PATH`. Paths in a file are meant relative to the file.\n\n## Shared\n\n"
    )
    shared = [option for option in OPTIONS.values() if option.shared]
    head = ("flag", "variable", "key", "values", "default", "meaning")
    yield table(head, *((*_names(o), _values(o), f"`{_default(o)}`", o.help) for o in shared))
    yield "## Of one command line only\n\n"
    others = [option for option in OPTIONS.values() if not option.shared]
    yield table(("flag", "values", "meaning"), *((_names(o)[0], _values(o), o.help) for o in others))
    yield "## Variables without a flag\n\n"
    yield table(
        ("variable", "meaning"),
        ("`TRAINCHECK_SESSION`", "set by `collect` and `run` for the processes that they start; not to be set by hand"),
        ("`TRAINCHECK_DEBUG`", "`1` shows the traceback of an error in TrainCheck itself, as `--debug` does"),
    )


def _names(option: Option) -> tuple[str, str, str]:
    return ", ".join(f"`{flag}`" for flag in option.flags), f"`{option.variable}`", f"`{option.key}`"


def _values(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    kinds = {
        "path": "a path",
        "switch": "a switch",
        "number": "a number",
        "count": "a number",
        "share": "a percentage",
        "size": "a size",
    }
    return kinds.get(option.kind, option.kind if option.several else "a text")


def _default(option: Option) -> str:
    return "none" if option.default in (None, (), 0.0) else str(option.default)


# -- report --------------------------------------------------------------------------------------------------------


_NOUNS = (
    (Finding, "A finding"),
    (Site, "A site"),
    (Counts, "Counts"),
    (Cost, "Cost"),
    (RankState, "A rank"),
    (Parting, "A parting of ranks"),
)


def report_json() -> Iterator[str]:
    """The JSON report: fields from the nouns, an example from the gold file of the tests."""
    yield f"# The JSON report\n\n{NOTE}\n"
    yield (
        f"Version {REPORT_VERSION}. `traincheck run` leaves it in the run folder as `report.json`; `--json FILE` of "
        "`run`, `check` and `report` writes it elsewhere. Fields may be added without a new version, so readers "
        "should pass over those they do not know; the version grows when a field goes or changes its meaning.\n\n"
    )
    yield table(
        ("field", "meaning"),
        ("`version`", f"the version of this format, {REPORT_VERSION}"),
        ("`verdict`", "`clean`, `notices` (no finding fails the run) or `errors`"),
        ("`findings`", "list of findings, the leading one first"),
        ("`counts`", "how the deployed invariants fared and how much was seen"),
        ("`not_observed`", "what could not be observed, with the reason; list of texts"),
        (
            "`run`",
            "what is known of the run: script, versions, start and end, exit code, processes; `full` are steps that "
            "were recorded in full (the first and the last of each time) although less was asked for; `recorded` says "
            "how many steps the recording holds and how many were watched, where these are more; `untrained` says "
            "that no training step was recognised, and what was seen instead; `files` has the "
            "SHA-256 of each file that a finding names, as it was when the program ran",
        ),
        ("`ranks`", "how each rank of a job fared, by job, then by rank; empty for a run of one rank"),
        ("`partings`", "where the ranks of each job first went apart, of those in which they did"),
        ("`cost`", "how many steps were watched and what that took, see below; null where that was not measured"),
    )
    for noun, title in _NOUNS:
        yield f"## {title}\n\n" + table(("field", "type", "meaning"), *_fields(noun))
    example = (ROOT / "tests" / "gold" / "report.json").read_text(encoding="utf-8")
    yield f"## Example\n\n```json\n{example.rstrip()}\n```\n"


def _fields(noun: type) -> Iterator[tuple[str, ...]]:
    told = REPORT_FIELDS[noun]
    names = [field.name for field in dataclasses.fields(noun)]
    if names != list(told):
        raise SystemExit(f"docs/generate.py: REPORT_FIELDS of {noun.__name__} should be {names}")
    for field in dataclasses.fields(noun):
        yield f"`{field.name}`", f"`{field.type}`", told[field.name]


# -- facts and messages --------------------------------------------------------------------------------------------


def facts() -> Iterator[str]:
    """The vocabulary of contexts."""
    yield f"# Facts\n\n{NOTE}\n"
    yield (
        "A fact is one entry of a context: what was so when an occasion arose. Preconditions are made of these and of "
        "nothing else. Process and object ids, addresses, byte counts and clocks are never facts, because a rule that "
        "rests on them could not hold in another run.\n\n"
    )
    yield table(("fact", "meaning"), *((f"`{name}`", meaning) for name, meaning in FACTS.items()))
    yield f"Stages: {', '.join(f'`{stage}`' for stage in STAGES)}.\n"


def python() -> Iterator[str]:
    """What `import traincheck` offers, and what packages may use to prove their extensions, from the docstrings."""
    yield f"# Python\n\n{NOTE}\n"
    yield (
        "What `import traincheck` offers; it does not import torch. Where the launch command is in reach, "
        "`traincheck run` does the same without a line of code. `traincheck.testing` is for packages that "
        "[prove their extensions](../extend/relations.md#proving-it); the rest is not for others to rely on.\n\n"
    )
    for name in traincheck.__all__:
        thing = getattr(traincheck, name)
        if not isinstance(thing, str):
            yield from _described(f"traincheck.{name}", thing)
    yield from _described("Observation", Observation, "What `observe` and `checked` give the block.")
    for thing in (check_relation, from_text, to_text):
        yield from _described(f"{thing.__module__}.{thing.__name__}", thing)


def _described(name: str, thing: Any, before: str = "") -> Iterator[str]:
    yield f"## {name}\n\n"
    if inspect.isfunction(thing):
        yield f"```\n{_signature(name, thing)}\n```\n\n"
    yield (f"{before}\n\n" if before else "") + f"{inspect.getdoc(thing)}\n\n"


def _signature(name: str, function: Any) -> str:
    """As it is called: each parameter on a line of its own where they do not fit in one."""
    signature = inspect.signature(function)
    told, keywords = [], False
    for param in signature.parameters.values():
        if param.kind is param.KEYWORD_ONLY and not keywords:
            told.append("*")
            keywords = True
        default = "" if param.default is param.empty else f" = {param.default!r}"
        told.append(f"{param.name}: {param.annotation}{default}")
    result = str(signature.return_annotation)
    entered = result.startswith("Iterator[") and hasattr(function, "__wrapped__")
    begin = f"with {name}(" if entered else f"{name}("
    given = result.removeprefix("Iterator[").removesuffix("]")
    end = (f") as {given}" if given != "None" else ")") if entered else f") -> {result}"
    line = begin + ", ".join(told) + end
    return line if len(line) <= 90 else begin + "".join(f"\n    {each}," for each in told) + f"\n{end}"


def slugs() -> dict[str, type[errors.TrainCheckError]]:
    """Every slug with its class, in the order of the tree. Raises SystemExit for a slug that two classes have."""
    found: dict[str, type[errors.TrainCheckError]] = {}
    tree = re.findall(r"\w+", errors.__doc__ or "")
    ours = [thing for thing in vars(errors).values() if isinstance(thing, type)]
    for thing in sorted(ours, key=lambda one: tree.index(one.__name__) if one.__name__ in tree else len(tree)):
        if issubclass(thing, errors.TrainCheckError):
            if thing.slug in found:
                raise SystemExit(f"{thing.__name__} and {found[thing.slug].__name__} share the slug {thing.slug!r}")
            found[thing.slug] = thing
    return found


def messages(text: str) -> str:
    """docs/messages.md with its table written anew; the rest of it is written by hand."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    rows = [
        (f"[`{slug}`](#{slug})", f"`{cls.__name__}`", str(cls.exit_code), _bases(cls)) for slug, cls in slugs().items()
    ]
    return f"{before}{BEGIN}\n{table(('slug', 'class', 'exit code', 'a kind of'), *rows)}{END}{after}"


def _bases(cls: type) -> str:
    ours = [base for base in cls.__bases__ if issubclass(base, errors.TrainCheckError)]
    return f"`{(ours or cls.__bases__)[0].__name__}`"


def main(words: list[str]) -> int:
    """Write the pages, or with --check say which differ; the exit code."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if "--check" not in words:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages()[path], encoding="utf-8")
        print(f"{'out of date' if '--check' in words else 'written'}: {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
