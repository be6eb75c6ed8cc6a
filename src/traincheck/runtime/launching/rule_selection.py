"""Selects the rules for a run: from named books and packs, or from the project's library and the shipped packs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from traincheck.addresses import readable_path
from traincheck.config import Config
from traincheck.errors import BadOption, NoBook, NoRuleDeployed
from traincheck.invariants.book import Book, merge_books, read_book
from traincheck.invariants.builtin_rules import of_training
from traincheck.invariants.packs import ANCHOR, ANY, SHIPPED, Packs, Program, book_of_packs, read_packs
from traincheck.invariants.selection import deployable
from traincheck.options import NO_PACKS, OPERATIONS, SHIPPED_PACKS
from traincheck.runtime.launching.deployment import Deployment, deploy
from traincheck.runtime.launching.program_identity import CheckedProgram
from traincheck.runtime.stderr_log import log_warning
from traincheck.vocab.occasion import RANKS


@dataclass(frozen=True)
class Rules:
    """The rules for a run.

    `books` has the path and the content of each book, and whether you named it. `others` has rules that belong to no
    program: those of packs and of replays.
    """

    books: tuple[tuple[str, Book, bool], ...]
    others: tuple[tuple[str, Book], ...]

    def book(self, program: CheckedProgram, *, or_nothing: bool = False) -> Book:
        """All rules as one book, deployed on `program`, plus the built-in rules of training. Log lines report skipped
        rules.

        Raises NoRuleDeployed if no rule is left, unless `or_nothing`.
        """
        deployed = [(path, book, deploy(book, program, named=named)) for path, book, named in self.books]
        for path, book, deployment in deployed:
            for line in lines_of(Path(path).name, len(book.active), deployment):
                log_warning(line)
        merged = merge_books([*((path, deployment.book) for path, _, deployment in deployed), *self.others])
        if deployable(merged.invariants, program.script):
            compares_ranks = any(rule.subject.grain == RANKS for rule in merged.invariants)
            general = Book(of_training(compares_ranks=compares_ranks))
            return merge_books([("", merged), ("what training is", general)])
        if not or_nothing:
            others = sorted({name for _, _, deployment in deployed for name in deployment.others})
            raise NoRuleDeployed(program.script, others)
        return merged


def book_of(config: Config, program: CheckedProgram, look: Callable[[Collection[str]], Program] | None = None) -> Book:
    """All requested rules as one book, deployed on `program`.

    A run that records operations needs no rules. Raises the errors of `rules_of`, and NoRuleDeployed if no rule applies
    to the program.
    """
    return rules_of(config, look).book(program, or_nothing=config.record == OPERATIONS)


def rules_of(config: Config, look: Callable[[Collection[str]], Program] | None = None) -> Rules:
    """The requested rules: those of the named books and packs, and the rules about verified steps if some are verified.

    Without a named book, these are the project's library and the shipped packs. `look` describes the program, given the
    packages that matter. Raises NoBook if there are no rules and no operations are recorded, BookError for unreadable
    books, and BadOption for invalid packs.
    """
    several = [read_packs(address) for address in packs_of(config)]
    books = config.books or own_books(Path.cwd())
    if not several and not books and not config.verify_every and config.record != OPERATIONS:
        raise NoBook
    matter = {package for packs in several for pack in packs.manifest.packs for package in pack.uses}
    program = look(matter) if look is not None and several else ANY
    for packs in several:
        log_warning(summary_of(packs, program))
    own = tuple((path, read_book(path), bool(config.books)) for path in books)
    others = [("the packs", book_of_packs(several, program))] if several else []
    if config.verify_every:
        from traincheck.relations.consistent import builtin_rules  # the import is slow

        others.append(("verified steps", Book(builtin_rules.of_verification())))
    return Rules(own, tuple(others))


def lines_of(name: str, active: int, deployment: Deployment) -> Iterator[str]:
    """Messages about a deployed book: the program's name in it, and the number of skipped rules."""
    if deployment.known_as:
        yield f"{name} was learned from this program under the name {deployment.known_as}; its rules are checked"
    if deployment.unused:
        whose = deployment.others[0] + (f" and {len(deployment.others) - 1} more" if len(deployment.others) > 1 else "")
        yield (
            f"{deployment.unused:,} of {active:,} rules of {name} belong to {whose} and are not checked here: this "
            f"program is another one; use --as {deployment.others[0]} to check them"
        )


def own_books(start: Path) -> tuple[str, ...]:
    """The book of the project's library, if it has one, with a log line."""
    from traincheck.invariants.library import BOOK, find, read_record  # a named book needs neither
    from traincheck.reporting.phrases import number

    library = find(start)
    if library is None:
        return ()
    log_warning(
        f"checking against the rules of {number(len(read_record(library).runs), 'accepted run')}: {library / BOOK}"
    )
    return (str(library / BOOK),)


def packs_of(config: Config) -> list[str]:
    """The paths or addresses of the requested packs. Raises BadOption."""
    addresses = config.packs or (() if config.books else (SHIPPED_PACKS,))
    if addresses == (NO_PACKS,):
        return []
    if NO_PACKS in addresses:
        raise BadOption(config.origin("packs"), " ".join(addresses), f"{NO_PACKS} by itself, or packs")
    for address in addresses:
        readable_path(address.partition(ANCHOR)[0], config.origin("packs"))
    return [str(SHIPPED) if address == SHIPPED_PACKS else address for address in dict.fromkeys(addresses)]


def summary_of(packs: Packs, program: Program) -> str:
    """A log line about the packs in use."""
    from traincheck.reporting.phrases import number

    used, manifest = packs.of_use(program), packs.manifest
    whose = f"packs {manifest.name} {manifest.version}"
    if not used:
        return (
            f"the {whose} are for torch {manifest.torch} and newer; none of them is used"
            if manifest.torch
            else (f"none of the {whose} applies to this program")
        )
    names = ", ".join(pack.name for pack in used)
    return f"checking against {number(sum(pack.rules for pack in used), 'rule')} of the {whose}: {names}"
