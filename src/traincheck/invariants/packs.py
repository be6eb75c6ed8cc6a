"""Packs: books for programs that were never seen, in a folder with a manifest.

Note [Several packs of one book]
All packs of a folder are parts of one book, learned from all of its programs together, so that a rule rests on all of
its evidence. A rule belongs to the pack of the narrowest theme that contains all of its programs, and to `general` if
there is none. Rules that only jobs of several ranks have shown are of no use to other programs, and need not be
observed there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from traincheck.addresses import as_path, contents
from traincheck.errors import BookError, PacksUnreadable, TraceOutOfReach
from traincheck.invariants.book import Book, book_in, merge_books
from traincheck.version import __version__

FORMAT = 1
KIND = "traincheck packs"
MANIFEST = "packs.json"

SHIPPED = Path(__file__).parent.parent / "packs"
"""The packs that come with TrainCheck."""

GENERAL = "general"
"""The pack of rules that no single theme contains."""

ANCHOR = "#sha256="
"""After the address of packs: the expected digest of their manifest."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[\w-]+\.jsonl$")]


class Pack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A book among the packs: `file` and its SHA-256, `about` in a line, and its size.

    It is useful to programs that use one of the packages `uses` (to any, if there are none) and have at least `ranks`
    ranks. `rules` counts its invariants, `errors` those of that severity; `programs` and `steps` count what these were
    learned from.
    """

    name: str
    file: FileName
    sha256: Digest
    about: str = ""
    uses: tuple[str, ...] = ()
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    rules: Count
    errors: Count
    programs: Count
    steps: Count


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of packs.json: the name of the packs, their version, and the versions they were made with.

    `torch` is the oldest supported release of torch. `made_with` has the versions of Python, torch and the frameworks
    that the programs ran with.
    """

    format: int = FORMAT
    kind: str = KIND
    name: str
    version: str
    traincheck: str = __version__
    torch: str = ""
    made_with: dict[str, str]
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class Program:
    """What is known of a program before it runs: the packages that it imports, None if unknown; whether it may have
    several ranks; and the release of torch, empty if unknown.
    """

    packages: frozenset[str] | None = None
    distributed: bool = True
    torch: str = ""


ANY = Program()
"""An unknown program: all packs are useful to it."""


@dataclass(frozen=True)
class Packs:
    """The packs in a folder, or at an address."""

    home: Path
    manifest: Manifest

    def of_use(self, program: Program) -> tuple[Pack, ...]:
        """The packs to check `program` with."""
        if _release(program.torch) < _release(self.manifest.torch) and program.torch:
            return ()
        return tuple(pack for pack in self.manifest.packs if _is_of_use(pack, program))

    def book(self, pack: Pack) -> Book:
        """The book of one of them. Raises PacksUnreadable, also if the file is not the packed one."""
        file = self.home / pack.file
        data = _read(file, self.home)
        if hashlib.sha256(data).hexdigest() != pack.sha256:
            raise PacksUnreadable(
                self.home, f"{pack.file} is not the file that was packed: its SHA-256 is not the one in {MANIFEST}"
            )
        try:
            return book_in(data, file)
        except BookError as error:
            raise PacksUnreadable(self.home, str(error)) from error


def read_packs(named: str | Path) -> Packs:
    """The packs in a folder, or at an address (`s3://team/packs`). A suffix `#sha256=...` gives the expected digest of
    the manifest.

    Raises PacksUnreadable if there are none, or other ones.
    """
    home, anchor, digest = str(named).partition(ANCHOR)
    folder = as_path(home)
    data = _read(folder / MANIFEST, folder)
    if anchor and hashlib.sha256(data).hexdigest() != digest.lower():
        raise PacksUnreadable(folder, f"the SHA-256 of {MANIFEST} is not {digest}: these are other packs")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        newer = _format_of(data)
        if newer > FORMAT:
            reason = f"{MANIFEST} is of format {newer}, and this TrainCheck reads up to {FORMAT}; upgrade TrainCheck"
            raise PacksUnreadable(folder, reason) from None
        raise PacksUnreadable(folder, f"{MANIFEST}: {error}") from None
    if manifest.kind != KIND:
        raise PacksUnreadable(folder, f'{MANIFEST} does not say "kind": "{KIND}"')
    return Packs(folder, manifest)


def book_of_packs(several: Iterable[Packs], program: Program = ANY) -> Book:
    """One book of all packs that are useful to `program`. Raises PacksUnreadable, BookConflict."""
    return merge_books(
        (packs.home / pack.file, packs.book(pack)) for packs in several for pack in packs.of_use(program)
    )


def _read(file: Path, home: Path) -> bytes:
    try:
        return contents(file)
    except FileNotFoundError:
        raise PacksUnreadable(home, f"there is no {file.name}") from None
    except TraceOutOfReach as error:
        raise PacksUnreadable(home, str(error)) from error
    except OSError as error:
        raise PacksUnreadable(home, f"{file.name}: {error.strerror or error}") from None


def _format_of(data: bytes) -> int:
    class Format(msgspec.Struct):
        format: int = 0

    try:
        return msgspec.json.decode(data, type=Format).format
    except (msgspec.MsgspecError, RecursionError):
        return 0


def _is_of_use(pack: Pack, program: Program) -> bool:
    if pack.ranks > 1 and not program.distributed:
        return False
    return not pack.uses or program.packages is None or not program.packages.isdisjoint(pack.uses)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release, for comparison: those of 2.13.0+cpu are 2, 13 and 0."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def narrowest(themes: Sequence[tuple[str, frozenset[str]]], origin: Iterable[str]) -> str:
    """The name of the smallest of `themes` (each with its programs) that has all programs of `origin`, see Note
    [Several packs of one book]."""
    needed = set(origin)
    fitting = [(len(programs), name) for name, programs in themes if needed <= programs]
    return min(fitting)[1] if fitting else GENERAL
