"""What a run is checked against: the books and packs that were named, or the project's library and what is shipped."""

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
from traincheck.options import NO_PACKS, SHIPPED_PACKS
from traincheck.runtime.launching.deployment import Deployment, deploy
from traincheck.runtime.launching.program_identity import CheckedProgram
from traincheck.runtime.stderr_log import log_warning


@dataclass(frozen=True)
class Rules:
    """What a run is checked against: the books with their paths and whether the user named them, and the rules of packs
    and of what is executed again, which are of no single program."""

    books: tuple[tuple[str, Book, bool], ...]
    others: tuple[tuple[str, Book], ...]

    def book(self, program: CheckedProgram, *, or_nothing: bool = False) -> Book:
        """One book of all rules, as they are deployed on `program`, and with them what every training does; lines say
        which are not checked, and why.

        Raises NoRuleDeployed where none is checked, unless it may be nothing.
        """
        deployed = [(path, book, deploy(book, program, named=named)) for path, book, named in self.books]
        for path, book, deployment in deployed:
            for line in lines_of(Path(path).name, len(book.active), deployment):
                log_warning(line)
        merged = merge_books([*((path, deployment.book) for path, _, deployment in deployed), *self.others])
        if deployable(merged.invariants, program.script):
            return merge_books([("", merged), ("what training is", Book(of_training()))])
        if not or_nothing:
            others = sorted({name for _, _, deployment in deployed for name in deployment.others})
            raise NoRuleDeployed(program.script, others)
        return merged


def book_of(config: Config, program: CheckedProgram, look: Callable[[Collection[str]], Program] | None = None) -> Book:
    """One book of all that was asked for, as it is deployed on `program`.

    Raises what `rules_of` raises, and NoRuleDeployed where none of it is checked on the program.
    """
    return rules_of(config, look).book(program)


def rules_of(config: Config, look: Callable[[Collection[str]], Program] | None = None) -> Rules:
    """All that was asked for: the books that are named, and the packs; where no book is named, that of the project's
    library and the packs that are shipped. `look` says what is known of the program, given the packages that matter.
    Where steps are executed again, the rules about that are in it.

    Raises NoBook where there is nothing to check against, BookError for what cannot be read, BadOption for what no
    packs can be.
    """
    several = [read_packs(address) for address in packs_of(config)]
    books = config.books or own_books(Path.cwd())
    if not several and not books and not config.replay_every:
        raise NoBook
    matter = {package for packs in several for pack in packs.manifest.packs for package in pack.uses}
    program = look(matter) if look is not None and several else ANY
    for packs in several:
        log_warning(summary_of(packs, program))
    own = tuple((path, read_book(path), bool(config.books)) for path in books)
    others = [("the packs", book_of_packs(several, program))] if several else []
    if config.replay_every:
        from traincheck.relations.consistent import builtin_rules  # relations take long to import

        others.append(("what is executed again", Book(builtin_rules.of_replays())))
    return Rules(own, tuple(others))


def lines_of(name: str, active: int, deployment: Deployment) -> Iterator[str]:
    """What a user has to know of how a book is deployed: under which name it knows the program, and what is unused."""
    if deployment.known_as:
        yield f"{name} was learned from this program under the name {deployment.known_as}; its rules are checked"
    if deployment.unused:
        whose = deployment.others[0] + (f" and {len(deployment.others) - 1} more" if len(deployment.others) > 1 else "")
        yield (
            f"{deployment.unused:,} of {active:,} rules of {name} belong to {whose} and are not checked here: this "
            f"program is another one; use --as {deployment.others[0]} to check them"
        )


def own_books(start: Path) -> tuple[str, ...]:
    """The book of the library of the project that the folder belongs to, if it has one; a line says so."""
    from traincheck.invariants.library import BOOK, find, read_record  # where a book is named, neither is needed
    from traincheck.reporting.phrases import number

    library = find(start)
    if library is None:
        return ()
    log_warning(
        f"checking against what {number(len(read_record(library).runs), 'accepted run')} showed: {library / BOOK}"
    )
    return (str(library / BOOK),)


def packs_of(config: Config) -> list[str]:
    """The places of the packs that were asked for. Raises BadOption."""
    addresses = config.packs or (() if config.books else (SHIPPED_PACKS,))
    if addresses == (NO_PACKS,):
        return []
    if NO_PACKS in addresses:
        raise BadOption(config.origin("packs"), " ".join(addresses), f"{NO_PACKS} by itself, or packs")
    for address in addresses:
        readable_path(address.partition(ANCHOR)[0], config.origin("packs"))
    return [str(SHIPPED) if address == SHIPPED_PACKS else address for address in dict.fromkeys(addresses)]


def summary_of(packs: Packs, program: Program) -> str:
    """Which of some packs are used, in a line."""
    from traincheck.reporting.phrases import number

    used, manifest = packs.of_use(program), packs.manifest
    whose = f"packs {manifest.name} {manifest.version}"
    if not used:
        return (
            f"the {whose} are for torch {manifest.torch} and newer, and none of them is used"
            if manifest.torch
            else (f"none of the {whose} is of use to this program")
        )
    names = ", ".join(pack.name for pack in used)
    return f"checking against {number(sum(pack.rules for pack in used), 'rule')} of the {whose}: {names}"
