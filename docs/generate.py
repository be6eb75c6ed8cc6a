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
from traincheck import errors, plugins
from traincheck.cli.main import app
from traincheck.diagnoses.catalogue import topics
from traincheck.diagnoses.diagnosis import Diagnosis
from traincheck.diagnoses.page import page
from traincheck.options import OPTIONS, Option
from traincheck.runtime.observe import Observation
from traincheck.testing import verify_step
from traincheck.testing.conformance import check_relation
from traincheck.testing.readable_traces import from_text, to_text
from traincheck.vocab.events import STAGES
from traincheck.vocab.facts import FACTS
from traincheck.vocab.finding import REPORT_VERSION, Cost, Counts, Divergence, Finding, RankState, Site
from traincheck.vocab.verification import VerifiedComputation

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTE = "<!-- Written by docs/generate.py from the source; change it there and run `make docs`. -->\n"
BEGIN, END = "<!-- slugs: begin -->\n", "<!-- slugs: end -->\n"
NOTES_BEGIN, NOTES_END = "<!-- notes: begin; write here, `make docs` keeps it -->\n", "<!-- notes: end -->\n"

REPORT_FIELDS: dict[type, dict[str, str]] = {
    Finding: {
        "severity": "`error` (fails a run) or `notice` (does not)",
        "step": "training step in which it was first seen; 0 is the set-up",
        "rank": "rank of the process in which it was first seen; the first of all for a comparison of ranks",
        "title": "the finding in a few words",
        "cause": "the likely cause, in one or two sentences; may be empty",
        "site": "the place in the user's code, see below; null if it is unknown",
        "variables": "names of the parameters, gradients or buffers concerned",
        "expected": "what should have happened: the leading invariant",
        "observed": "what happened instead",
        "advice": "what to check, the most likely first",
        "invariants": "ids of the invariants behind the finding, the leading one first",
        "last_step": "the last step in which it was seen",
        "times": "in how many windows the most violated of its invariants failed",
        "ranks": "for a comparison of ranks, the ranks that differ from the majority, or all differing ranks "
        "without a majority; "
        "otherwise the ranks that have this finding",
        "compared": "number of compared ranks; 0 if each rank was judged separately",
        "diagnosis": "stable name of this kind of trouble, as in `gradients-not-cleared`; each has "
        "[a page](../findings/index.md). Empty in reports of older versions",
    },
    Site: {
        "file": "path, relative to the directory in which the program was started if it lies below it",
        "line": "line number",
        "function": "qualified name of the function",
    },
    Counts: {
        "invariants": "invariants of the book that were deployed on this program",
        "passed": "held on every occasion there was",
        "violated": "failed on at least one occasion",
        "not_triggered": "had no occasion",
        "not_observed": "could not be judged, because TrainCheck did not observe their events",
        "muted": "muted in the book, and not deployed",
        "errors": "findings of severity error",
        "notices": "findings of severity notice",
        "steps": "training steps seen",
        "windows": "windows seen, all processes together",
        "windows_dropped": "windows that were dropped because writing could not keep up",
        "processes": "processes in which training was observed",
    },
    Cost: {
        "steps": "training steps of the process with the most steps",
        "watched": "watched steps among these",
        "seconds": "total run time of all processes",
        "sources": "seconds that watching took on the threads of the program, by source",
        "background": "seconds of CPU time of the background thread, by kind of work",
    },
    RankState: {
        "rank": "number of the rank",
        "job": "its job; a restarted elastic job is a new job",
        "end": "`ended`, `killed`, `stopped recording` (but still trained), `left no recording`, or `not "
        "ended` (the run continues "
        "or was killed completely)",
        "steps": "training steps, as far as they are known",
        "windows": "windows, as far as they are known",
        "recorded": "the last step in its recording",
        "compared": "the last step in which it was compared with other ranks; null if it never was",
        "apart": "the first step in which this rank diverged from others; or null",
        "what": "the kind of divergence: `gradients differ`, `collectives differ`, `batches are the same` ...",
    },
    VerifiedComputation: {
        "experiment": "the experiment, see [Verification](../verification.md); for a step that was executed again, its "
        "part: `forward`, `backward`, `update`, or `elsewhere` for another rank",
        "subject": "the model or the optimizer",
        "agreed": "results in which both ways agreed",
        "disagreed": "results in which they did not",
        "reasons": "why the experiment could not decide in some steps or for some parts",
    },
    Divergence: {
        "job": "the job",
        "step": "the first step in which its ranks diverged",
        "what": "the kind of divergence: `gradients differ`, `collectives differ`, `batches are the same` ...",
        "ranks": "the ranks that differ from the majority; all differing ranks if there is no majority",
        "compared": "number of compared ranks; if `ranks` has fewer than half of them, the others agree",
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
        reference / "sources.md": "".join(sources()),
        reference / "python.md": "".join(python()),
        DOCS / "messages.md": messages((DOCS / "messages.md").read_text(encoding="utf-8")),
        **findings(DOCS / "findings"),
    }


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


# -- commands ------------------------------------------------------------------------------------------------------


def cli() -> Iterator[str]:
    """The commands, from their own --help."""
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
        "You can give a shared option as a flag, as an environment variable, or as a key of `[tool.traincheck]` in the "
        "nearest `pyproject.toml`. Variable and key have the name of the flag. The flag wins over the "
        "variable, and the "
        "variable over the key. Repeat a flag to give several values; a variable separates names by commas, paths as "
        "`PATH` does, and alerts by lines. Paths in the file are relative to the file.\n\n## Shared\n\n"
    )
    shared = [option for option in OPTIONS.values() if option.shared]
    head = ("flag", "variable", "key", "values", "default", "meaning")
    yield table(head, *((*_names(o), _values(o), f"`{_default(o)}`", o.help) for o in shared))
    yield "## On the command line only\n\n"
    others = [option for option in OPTIONS.values() if not option.shared]
    yield table(("flag", "values", "meaning"), *((_names(o)[0], _values(o), o.help) for o in others))
    yield "## Variables without a flag\n\n"
    yield table(
        ("variable", "meaning"),
        (
            "`TRAINCHECK_SESSION`",
            "`collect` and `run` set it for the processes that they start; do not set it yourself",
        ),
        ("`TRAINCHECK_DEBUG`", "`1` shows the traceback of an error in TrainCheck itself, as `--debug` does"),
    )


def _names(option: Option) -> tuple[str, str, str]:
    flags = ", ".join(f"`{flag}`" for flag in option.flags)
    return flags or "none", f"`{option.variable}`", f"`{option.key}`" if option.key else "none"


def _values(option: Option) -> str:
    kinds = {
        "action": "`warn`, `stop`, `callback` or `MODULE:FUNCTION`",
        "budget": "`P%` or `1/K`, with `,first=N`",
        "lines": "texts",
        "path": "a path",
        "switch": "a switch",
        "number": "a number",
        "count": "a number",
        "size": "a size",
    }
    choices = ", ".join(f"`{choice}`" for choice in option.choices)
    return kinds.get(option.kind, choices or (option.kind if option.several else "a text"))


def _default(option: Option) -> str:
    return "none" if option.default in (None, (), 0.0) else str(option.default)


# -- report --------------------------------------------------------------------------------------------------------


_NOUNS = (
    (Finding, "A finding"),
    (Site, "A site"),
    (Counts, "Counts"),
    (Cost, "Cost"),
    (RankState, "A rank"),
    (Divergence, "A divergence of ranks"),
    (VerifiedComputation, "A verified computation"),
)


def report_json() -> Iterator[str]:
    """The JSON report: fields from the nouns, an example from the gold file of the tests."""
    yield f"# The JSON report\n\n{NOTE}\n"
    yield (
        f"Version {REPORT_VERSION}. `traincheck run` leaves it in the run folder as `report.json`; `--report "
        "json=FILE` "
        "of `run`, `check` and `report` writes it elsewhere. A new field needs no new version, so ignore fields that "
        "you do not know. The version increases when a field is removed or changes its meaning.\n\n"
    )
    yield table(
        ("field", "meaning"),
        ("`version`", f"the version of this format, {REPORT_VERSION}"),
        ("`verdict`", "`clean`, `notices` (no finding fails the run) or `errors`"),
        ("`findings`", "list of findings, the leading one first"),
        ("`counts`", "outcomes of the deployed invariants, and the amount of observed data"),
        ("`not_observed`", "list of texts: what could not be observed, with the reason"),
        (
            "`run`",
            "facts about the run: script, versions, start and end, exit code, processes; `full` are steps that "
            "were recorded in full (the first and the last of each time) although less was asked for; `recorded` says "
            "how many steps the recording holds and how many were watched, where these are more; `untrained` says "
            "that no training step was recognised, and what was seen instead; `files` has the "
            "SHA-256 of each file that a finding names, as it was when the program ran",
        ),
        ("`ranks`", "the state of each rank, by job and rank; empty for a run of one rank"),
        ("`divergences`", "the first divergence of ranks in each job that has one"),
        ("`cost`", "number of watched steps and their cost, see below; null if it was not measured"),
        ("`verification`", "what `verify` or `--verify-every` verified; empty if no step was verified"),
        (
            "`comparison`",
            "the comparison with the run of `--against`, with the fields of `compare --json`, and `text` for people; "
            "null without `--against`",
        ),
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


# -- findings --------------------------------------------------------------------------------------------------------


def findings(folder: Path) -> dict[Path, str]:
    """A page for each diagnosis, with the notes that were written by hand, and their index."""
    written = {folder / f"{entry.slug}.md": entry for group in topics().values() for entry in group}
    return {
        folder / "index.md": "".join(finding_index()),
        **{path: finding_page(entry, notes_in(path)) for path, entry in written.items()},
    }


def finding_index() -> Iterator[str]:
    """All diagnoses by topic."""
    yield f"# Findings\n\n{NOTE}\n"
    yield (
        "Every finding has a diagnosis: a stable name for one kind of trouble. The terminal shows it in "
        "brackets, as in "
        "`[gradients-not-cleared]`; the [JSON report](../reference/report-json.md) has it as `diagnosis`, and SARIF as "
        "the id of the rule. `traincheck explain gradients-not-cleared` prints the same text as its page here. "
        "Your team can [add its own](../extend/diagnoses.md).\n\n"
    )
    for topic, group in topics().items():
        yield f"## {topic}\n\n"
        yield table(("diagnosis", "finding"), *((f"[`{entry.slug}`]({entry.slug}.md)", entry.title) for entry in group))


def finding_page(entry: Diagnosis, notes: str) -> str:
    """The page of a diagnosis."""
    heading, _, rest = page(entry).partition("\n")
    return f"{heading}\n\n{NOTE}{rest}\n{NOTES_BEGIN}{notes}{NOTES_END}"


def notes_in(path: Path) -> str:
    """The part of a page that was written by hand."""
    if not path.exists():
        return ""
    _, _, rest = path.read_text(encoding="utf-8").partition(NOTES_BEGIN)
    return rest.partition(NOTES_END)[0]


# -- facts and messages --------------------------------------------------------------------------------------------


def facts() -> Iterator[str]:
    """The vocabulary of contexts."""
    yield f"# Facts\n\n{NOTE}\n"
    yield (
        "A fact is one entry of a context, recorded when an occasion arises. Preconditions consist of facts "
        "only. Process "
        "and object ids, addresses, byte counts and clocks are never facts, because a rule about them could "
        "not hold in "
        "another run.\n\n"
    )
    yield table(("fact", "meaning"), *((f"`{name}`", meaning) for name, meaning in FACTS.items()))
    yield f"Stages: {', '.join(f'`{stage}`' for stage in STAGES)}.\n"


def sources() -> Iterator[str]:
    """What each source declares."""
    yield f"# Sources\n\n{NOTE}\n"
    yield (
        "A source observes one aspect of a training process. The cost grows with what the third column names. "
        "`traincheck doctor` lists the sources that can observe on your machine, and `traincheck ctl RUN "
        "source NAME off` "
        "switches one off. [Your package can add a source](../extend/sources.md).\n\n"
    )
    declared = plugins.load(plugins.SOURCE_GROUP, plugins.SOURCES).values()
    yield table(
        ("source", "observes", "cost for each", "without it"),
        *((f"`{each.name}`", each.observes, each.cost, each.absence) for each in declared),
    )


def python() -> Iterator[str]:
    """What `import traincheck` offers, and what packages may use to prove their extensions, from the docstrings."""
    yield f"# Python\n\n{NOTE}\n"
    yield (
        "These names come with `import traincheck`, which does not import torch. If you can change the launch command, "
        "`traincheck run` does the same without a line of code. Use `traincheck.testing` to "
        "[test your extensions](../extend/relations.md#testing-it). All other modules are private.\n\n"
    )
    for name in traincheck.__all__:
        thing = getattr(traincheck, name)
        if not isinstance(thing, str):
            yield from _described(f"traincheck.{name}", thing)
    yield from _described("Observation", Observation, "`observe` and `checked` pass it to the block.")
    yield from _described("traincheck.testing.verify_step", verify_step)
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
    """docs/messages.md with a new table; the rest is written by hand."""
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
