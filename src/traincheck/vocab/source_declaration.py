"""What a source says of itself: what it serves, what it costs, and what cannot be judged without it.

A recording is checked where torch is not installed. So declarations lie in files that import no torch, and nothing
else needs to know a source by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from traincheck.vocab.demand import ALL, Demand, ValueKind

CostClass = Literal["step", "call", "operation"]
"""What the work of a source grows with: training steps, observed calls, or every torch operation of the program."""


@dataclass(frozen=True, slots=True)
class SourceDeclaration:
    """A source as the rest of TrainCheck knows it. A declaration may claim more than the source serves, never less.

    * `observes`: one phrase for people.
    * `apis`: names of APIs whose calls the source reports. One that ends with a dot stands for everything below it
      (`torch.distributed.`), and `*.state_dict` for every method of that name.
    * `serves_api`: a test for names that `apis` cannot express.
    * `readings`: such as `module.training`, or `run.*` for all of a kind.
    * `values`: kinds of values that the source reads of the calls of all sources.
    * `cost`: see `CostClass`.
    * `absence`: one sentence on what cannot be judged without the source.
    * `required`: steps, names or contexts rest on it. TrainCheck always attaches it, and judges no rule without it.
    * `aligns_ranks`: TrainCheck does not compare the windows of several ranks without it.
    * `switchable`: `traincheck ctl source` may switch it off. (A required source is never switched off.)
    * `source`: `module:Class` of a source that an installed package adds.
    """

    name: str
    observes: str
    absence: str
    apis: tuple[str, ...] = ()
    serves_api: Callable[[str], bool] | None = None
    readings: tuple[str, ...] = ()
    values: tuple[ValueKind, ...] = ()
    cost: CostClass = "call"
    required: bool = False
    aligns_ranks: bool = False
    switchable: bool = True
    source: str = ""

    @property
    def can_be_switched_off(self) -> bool:
        """Whether a running source can be switched off and on."""
        return self.switchable and not self.required

    def serves(self, demand: Demand) -> bool:
        """Whether some of `demand` rests on this source."""
        return (
            self.required
            or demand.everything
            or any(self.serves_reading(kind, attribute) for kind, attribute in demand.readings)
            or any(kind in self.values for _, kind in demand.call_values)
            or any(map(self.serves_call, demand.named_apis()))
        )

    def serves_call(self, api: str) -> bool:
        """Whether the source may report calls of `api`."""
        return any(_matches(pattern, api) for pattern in self.apis) or (
            self.serves_api is not None and self.serves_api(api)
        )

    def serves_reading(self, kind: str, attribute: str) -> bool:
        """Whether the source may take readings of this attribute of this kind; `*` stands for any attribute."""
        return any(
            (declared_kind == kind and ALL in (declared, attribute)) or (declared_kind, declared) == (kind, attribute)
            for declared_kind, _, declared in (reading.partition(".") for reading in self.readings)
        )


def _matches(pattern: str, api: str) -> bool:
    if pattern.startswith("*."):
        return api.rsplit(".", 1)[-1] == pattern[2:]
    return api.startswith(pattern) if pattern.endswith(".") else api == pattern
