"""What a run is checked against: the books and packs that were named, or the project's library and what is shipped."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from traincheck.addresses import readable_place
from traincheck.config import Config
from traincheck.errors import BadOption, NoBook
from traincheck.invariants.book import Book, merge_books, read_book
from traincheck.invariants.packs import ANCHOR, ANY, SHIPPED, Packs, Program, book_of_packs, read_packs
from traincheck.options import NO_PACKS, SHIPPED_PACKS
from traincheck.runtime.complaint import complain


def book_of(config: Config, look: Callable[[Collection[str]], Program] | None = None) -> Book:
    """One book of all that was asked for: the books that are named, and the packs; where no book is named, that of the
    project's library and the packs that are shipped. `look` says what is known of the program, given the packages that
    matter. Where steps are executed again, the rules about that are in it.

    Raises NoBook where there is nothing to check against, BookError for what cannot be read, BadOption for what no
    packs can be.
    """
    several = [read_packs(place) for place in packs_of(config)]
    books = config.books or own_books(Path.cwd())
    if not several and not books and not config.replay_every:
        raise NoBook
    matter = {package for each in several for pack in each.manifest.packs for package in pack.uses}
    program = look(matter) if look is not None and several else ANY
    for each in several:
        complain(told_of(each, program))
    own = [(path, read_book(path)) for path in books]
    packed = [("the packs", book_of_packs(several, program))] if several else []
    if config.replay_every:
        from traincheck.relations import standing  # relations take long to import, and few ask for this

        own.append(("what is executed again", Book(standing.of_replays())))
    return merge_books([*own, *packed])


def own_books(start: Path) -> tuple[str, ...]:
    """The book of the library of the project that the folder belongs to, if it has one; a line says so."""
    from traincheck.invariants.library import BOOK, find, read_record  # where a book is named, neither is needed
    from traincheck.reporting.words import number

    library = find(start)
    if library is None:
        return ()
    complain(f"checking against what {number(len(read_record(library).runs), 'accepted run')} showed: {library / BOOK}")
    return (str(library / BOOK),)


def packs_of(config: Config) -> list[str]:
    """The places of the packs that were asked for. Raises BadOption."""
    named = config.packs or (() if config.books else (SHIPPED_PACKS,))
    if named == (NO_PACKS,):
        return []
    if NO_PACKS in named:
        raise BadOption(config.origin("packs"), " ".join(named), f"{NO_PACKS} by itself, or packs")
    for one in named:
        readable_place(one.partition(ANCHOR)[0], config.origin("packs"))
    return [str(SHIPPED) if one == SHIPPED_PACKS else one for one in dict.fromkeys(named)]


def told_of(packs: Packs, program: Program) -> str:
    """Which of some packs are used, in a line."""
    from traincheck.reporting.words import number

    chosen, told = packs.of_use(program), packs.manifest
    whose = f"packs {told.name} {told.version}"
    if not chosen:
        return (
            f"the {whose} are for torch {told.torch} and newer, and none of them is used"
            if told.torch
            else (f"none of the {whose} is of use to this program")
        )
    names = ", ".join(pack.name for pack in chosen)
    return f"checking against {number(sum(pack.rules for pack in chosen), 'rule')} of the {whose}: {names}"
