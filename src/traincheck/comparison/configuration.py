"""Compares what two runs were started with: arguments, code, versions, ranks, settings and environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.vocab.run_configuration import RunConfiguration

ARGUMENTS, SOURCE, SOFTWARE, RANKS, SETTINGS, PACKAGES, ENVIRONMENT = KINDS = (
    "arguments",
    "source",
    "software",
    "ranks",
    "settings",
    "packages",
    "environment",
)
"""Kinds of differences, in the order in which they are shown."""

COMMIT = "commit"
"""Name of the difference of the Git commits; all others of the kind *source* are files."""

SWITCH = "given"
"""The value of an option without a value."""


@dataclass(frozen=True)
class ConfigurationDifference:
    """A fact in which two runs differ. A value is None where a run lacks the argument, file, package or variable.

    Values of files are the first digits of their digests.
    """

    kind: str
    name: str
    a: str | None
    b: str | None


def configuration_differences(a: Path, b: Path) -> tuple[ConfigurationDifference, ...]:
    """The differences between the configurations of two recorded runs, those of `KINDS` in this order.

    What a run did not record counts as equal. Raises the errors of `RunFolder`.
    """
    return tuple(_differences(RunFolder.open(a), RunFolder.open(b)))


def _differences(a: RunFolder, b: RunFolder) -> Iterator[ConfigurationDifference]:
    own, other = a.manifest, b.manifest
    if own.argv and other.argv:
        yield from _different(ARGUMENTS, _arguments(own), _arguments(other))
    if own.commit and other.commit:
        yield from _different(SOURCE, {COMMIT: own.commit[:12]}, {COMMIT: other.commit[:12]})
    if own.files and other.files:
        yield from _different(SOURCE, _shortened(own.files), _shortened(other.files))
    own_note, other_note = _trained(a), _trained(b)
    if own_note is None or other_note is None:
        return
    yield from _different(SOFTWARE, _software(own_note), _software(other_note), in_both=True)
    yield from _different(RANKS, {"ranks": str(own_note.world_size)}, {"ranks": str(other_note.world_size)})
    settings, others = own_note.configuration, other_note.configuration
    if settings is None or others is None:
        return
    yield from _different(SETTINGS, settings.settings, others.settings, in_both=True)
    yield from _different(PACKAGES, _packages(settings), _packages(others))
    yield from _different(ENVIRONMENT, settings.environment, others.environment)


def _different(
    kind: str, a: Mapping[str, str], b: Mapping[str, str], *, in_both: bool = False
) -> Iterator[ConfigurationDifference]:
    """Compare the values of each name. With `in_both`, a missing value is unknown, and equal to all others."""
    for name in dict.fromkeys((*a, *b)):
        own, other = a.get(name), b.get(name)
        if own != other and not (in_both and None in (own, other)):
            yield ConfigurationDifference(kind, name, own, other)


def _trained(run: RunFolder) -> ProcessNote | None:
    """The note of the first process that trained; a launcher does not."""
    return next((note for note in run.notes() if note.configuration is not None or note.steps), None)


def _software(note: ProcessNote) -> dict[str, str]:
    return {name: value for name, value in (("torch", note.torch), ("Python", note.python)) if value}


def _packages(configuration: RunConfiguration) -> dict[str, str]:
    return {name: version for name, version in configuration.packages.items() if name != "torch"}


def _shortened(files: Mapping[str, str]) -> dict[str, str]:
    return {name: digest[:8] for name, digest in files.items()}


def _arguments(manifest: Manifest) -> dict[str, str]:
    """The words of the command line by option. What stands before the program is the launcher."""
    words = manifest.argv
    program = manifest.script.split(" ")[-1]
    at = next((index for index, word in enumerate(words) if program in (word, Path(word).name)), 0)
    options: dict[str, list[str]] = {"launcher": list(words[:at]), "program": [words[at]], "arguments": []}
    option = "arguments"
    for word in words[at + 1 :]:
        name, assigned, value = word.partition("=")
        if word.startswith("-") and not _is_number(word):
            option = name
            options.setdefault(option, [])
            if assigned:
                options[option].append(value)
                option = "arguments"
        else:
            options[option].append(word)
    fixed = ("launcher", "program", "arguments")
    return {name: " ".join(values) or SWITCH for name, values in options.items() if values or name not in fixed}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
