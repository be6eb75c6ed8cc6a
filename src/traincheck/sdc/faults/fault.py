"""Describe a hardware fault as data, and parse it from the text of `--fault`.

Imports no torch, so that a wrong text is reported at once. `inject.py` injects the fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields

from traincheck.errors import BadOption

BITFLIP, STUCK, INTERMITTENT = "bitflip", "stuck", "intermittent"
KINDS = (BITFLIP, STUCK, INTERMITTENT)
FORWARD, BACKWARD, GRADIENT, OPTIMIZER, COMMUNICATION = "forward", "backward", "gradient", "optimizer", "communication"
SITES = (FORWARD, BACKWARD, GRADIENT, OPTIMIZER, COMMUNICATION)
ANY, SIGN, EXPONENT, MANTISSA = "any", "sign", "exponent", "mantissa"
FIELDS_OF_BITS = (ANY, SIGN, EXPONENT, MANTISSA)

WIDEST = 64
"""Bits of the widest floating point number, fp64."""

CHANCE = 0.5
"""Share of wrong executions of an intermittent defect; an assumption. Equal inputs then agree least."""
ELEMENTS = 8
"""Wrong elements of one execution of an intermittent defect; an assumption."""
OF_ONE_KIND = {"to": STUCK, **dict.fromkeys(("stride", "flips", "nonfinite", "zeros"), INTERMITTENT)}
"""Keys that only one kind of fault has."""

SYNTAX = "KIND@SITE[:PATTERN][,KEY=VALUE...], such as intermittent@forward:*.mlp,chance=0.1"


@dataclass(frozen=True)
class Fault:
    """A fault: its kind, the operators that it is in, and when it strikes.

    kind: `bitflip` (a bit changes, in elements drawn anew each time), `stuck` (a bit has one value, always at the same
        places of a tensor), `intermittent` (some executions are wrong, each in another way, in elements at a fixed
        distance; see Note [Intermittent defects] in bits.py).
    site: `forward` (what modules return), `backward` (the gradients of their inputs), `gradient` (those of
        parameters), `optimizer` (parameters after a step), `communication` (what collectives bring to this rank).
    pattern: which of them, as a shell pattern: the qualified name or the class of a module, the name of a parameter,
        the name of a collective (`all_reduce`).
    bit: its number, 0 being the least significant one, or `any`, `sign`, `exponent`, `mantissa`: one of these is drawn
        for each element.
    to: the value of a stuck bit, 0 or 1.
    elements: how many are hit at most, 1 (8 if intermittent) if neither it nor `share` (of the elements) is given.
    stride: distance of the wrong elements of an intermittent defect; None draws 2, 4, 8, 16 or 32 for each target.
    flips: bits that change in an element; None draws one bit in 35 of 100 elements, and two to eight in the others.
    nonfinite, zeros: the share of wrong elements that become NaN or infinite, and the share of the others that become
        zero. Bits flip in the rest.
    chance: that it strikes, on each occasion (a call of a module, a gradient of a parameter...), so also for equal
        inputs. None is 1, and 0.5 for an intermittent defect.
    first, last: training steps, from 1 on, between which it may strike; 0 is no limit.
    burst: (steps, period): in each period it is active for so many steps in a row, from a step on that is drawn.
    rank: of torch.distributed; None is any.
    seed: of all that is drawn. The same fault in the same training strikes at the same places.
    """

    kind: str = BITFLIP
    site: str = FORWARD
    pattern: str = "*"
    bit: int | str = ANY
    to: int = 1
    elements: int | None = None
    share: float | None = None
    stride: int | None = None
    flips: int | None = None
    nonfinite: float = 0.01
    zeros: float = 0.5
    chance: float | None = None
    first: int = 0
    last: int = 0
    burst: tuple[int, int] | None = None
    rank: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises BadOption for a value that cannot be."""
        _check(self)

    @property
    def text(self) -> str:
        """The fault in the syntax of `--fault`."""
        text = f"{self.kind}@{self.site}:{self.pattern}"
        for name in _READERS:
            value, usual = getattr(self, name), _USUAL[name]
            if value != usual:
                text += f",{name}={'/'.join(map(str, value)) if isinstance(value, tuple) else value}"
        return text

    @property
    def of_parameters(self) -> bool:
        """Whether the pattern matches parameters instead of modules or collectives."""
        return self.site in (GRADIENT, OPTIMIZER)

    def hits(self, size: int) -> int:
        """Return how many elements of a tensor of `size` elements are hit at most."""
        if self.share is not None:
            return min(size, max(1, round(self.share * size)))
        usual = ELEMENTS if self.kind == INTERMITTENT else 1
        return min(size, usual if self.elements is None else self.elements)

    def strikes(self, draws: random.Random) -> bool:
        """Return whether the fault strikes on an occasion with these draws."""
        usual = CHANCE if self.kind == INTERMITTENT else 1.0
        return draws.random() < (usual if self.chance is None else self.chance)

    def active(self, step: int, repetition: int = 0) -> bool:
        """Whether the fault may strike in this training step, counted from 1, of this repetition of the training."""
        if step < self.first or (self.last and step > self.last):
            return False
        if self.burst is None:
            return True
        length, period = self.burst
        number, offset = divmod(step - 1, period)
        begins = self.draws("burst", number, repetition=repetition).randrange(period - length + 1)
        return begins <= offset < begins + length

    def draws(self, *occasion: object, repetition: int = 0) -> random.Random:
        """Return the random stream of an occasion, which depends on seed, occasion and repetition alone."""
        repeated = ("repetition", repetition) if repetition else ()
        # Text, for Random hashes it by sha512: the same in every process and release.
        return random.Random("/".join(map(str, (self.seed, *repeated, *occasion))))


_USUAL = {field.name: field.default for field in fields(Fault)}


def _check(fault: Fault) -> None:
    def needs(name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise BadOption(f"{name} of a fault", getattr(fault, name), expected)

    needs("kind", fault.kind in KINDS, f"one of {', '.join(KINDS)}")
    needs("site", fault.site in SITES, f"one of {', '.join(SITES)}")
    needs("pattern", bool(fault.pattern), "the name of a module, parameter or collective, or a pattern such as *.mlp")
    by_number = isinstance(fault.bit, int) and 0 <= fault.bit < WIDEST
    needs("bit", by_number or fault.bit in FIELDS_OF_BITS, f"0 to {WIDEST - 1}, or {', '.join(FIELDS_OF_BITS)}")
    needs("to", fault.to in (0, 1), "0 or 1")
    needs("elements", fault.elements is None or fault.elements >= 1, "a whole number, 1 or more")
    needs("share", fault.share is None or 0 < fault.share <= 1, "more than 0, at most 1")
    needs("share", fault.share is None or fault.elements is None, "only one of elements and share")
    needs("stride", fault.stride is None or fault.stride >= 1, "a whole number, 1 or more")
    needs("flips", fault.flips is None or 1 <= fault.flips <= WIDEST, f"1 to {WIDEST}")
    needs("nonfinite", 0 <= fault.nonfinite <= 1, "0 to 1")
    needs("zeros", 0 <= fault.zeros <= 1, "0 to 1")
    for name, kind in OF_ONE_KIND.items():
        needs(name, fault.kind == kind or getattr(fault, name) == _USUAL[name], f"it only for the kind {kind}")
    needs("chance", fault.chance is None or 0 <= fault.chance <= 1, "0 to 1")
    needs("first", fault.first >= 0, "a whole number, 0 or more")
    needs("last", fault.last == 0 or fault.last >= fault.first >= 0, "0, or not less than first")
    burst = fault.burst
    needs("burst", burst is None or 1 <= burst[0] <= burst[1], "STEPS/PERIOD with 1 <= STEPS <= PERIOD, such as 3/20")
    needs("rank", fault.rank is None or fault.rank >= 0, "a whole number, 0 or more")


def _bit(text: str) -> int | str:
    return text if text in FIELDS_OF_BITS else int(text)


def _pair(text: str) -> tuple[int, int]:
    length, period = text.split("/")
    return int(length), int(period)


_READERS: dict[str, Callable[[str], object]] = {
    "bit": _bit,
    "to": int,
    "elements": int,
    "share": float,
    "stride": int,
    "flips": int,
    "nonfinite": float,
    "zeros": float,
    "chance": float,
    "first": int,
    "last": int,
    "burst": _pair,
    "rank": int,
    "seed": int,
}
_EXPECTED = {
    **dict.fromkeys(("to", "elements", "stride", "flips", "first", "last", "rank", "seed"), "a whole number"),
    **dict.fromkeys(("share", "nonfinite", "zeros", "chance"), "a number"),
    "bit": f"a whole number, or {', '.join(FIELDS_OF_BITS)}",
    "burst": "STEPS/PERIOD, such as 3/20",
}


def parse_fault(text: str, option: str = "--fault") -> Fault:
    """Parse a text such as `stuck@backward:*.attention,bit=14,to=0,share=0.001`.

    Raises BadOption, which names the wrong part and the expected value.
    """
    head, *pairs = text.split(",")
    kind, at, where = head.partition("@")
    site, colon, pattern = where.partition(":")
    if not at:
        raise BadOption(option, text, SYNTAX)
    fields: dict[str, object] = {"kind": kind, "site": site, **({"pattern": pattern} if colon else {})}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in _READERS:
            raise BadOption(option, text, f"not {pair!r} but KEY=VALUE with one of {', '.join(_READERS)}")
        try:
            fields[name] = _READERS[name](value)
        except ValueError:
            raise BadOption(f"{name}= of {option}", value, _EXPECTED[name]) from None
    return Fault(**fields)  # type: ignore[arg-type]
