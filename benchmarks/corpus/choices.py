"""Draws what a program of the corpus is made of, by its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


class Draws:
    """Named draws of a seed: the same name gives the same value, and a new name changes no other draw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.drawn: dict[str, Any] = {}

    def pick(self, name: str, values: Sequence[Any]) -> Any:
        """One of `values`, each as likely; a value that stands there twice is twice as likely."""
        if name not in self.drawn:
            self.drawn[name] = random.Random(f"{self.seed} {name}").choice(list(values))
        return self.drawn[name]

    def maybe(self, name: str, probability: float) -> bool:
        """True with this probability."""
        if name not in self.drawn:
            self.drawn[name] = random.Random(f"{self.seed} {name}").random() < probability
        return bool(self.drawn[name])


@dataclass(frozen=True)
class Choices:
    """What a program of the corpus is made of. Strings are values that the templates compare."""

    seed: int
    program: str
    """A template of `programs/` that is a whole program, or "" where a loop and a task are joined."""
    loop: str
    task: str
    optimizer: str
    schedule: str
    clipping: str
    clearing: str
    clear_when: str
    accumulation: int
    ragged: bool
    precision: str
    average: str
    groups: str
    evaluation: str
    checkpoint: str
    data: str
    workers: int
    drop_last: bool
    compile: bool
    activation_checkpointing: str
    epochs: int
    batch_size: int
    samples: int
    ranks: int = 1
    lr: float = 0.0
    """The learning rate that the optimizer's template names; filled in when it is known."""


def draw(
    draws: Draws, supports: dict[str, Any], loop: str, task: str, program: str, optimizers: Sequence[str]
) -> Choices:
    """The choices of a seed. `supports` is what task, loop and program allow in addition to the plain way."""
    pick, maybe = draws.pick, draws.maybe

    def of(name: str, *values: Any) -> Any:
        """A draw from `values`, or from what the parts allow of them; the first is the plain way."""
        allowed = supports.get(name)
        if allowed is None:
            return pick(f"choice.{name}", values)
        kept = [value for value in values if value in allowed] or list(allowed)
        return pick(f"choice.{name}", kept)

    chosen = Choices(
        seed=draws.seed,
        program=program,
        loop=loop,
        task=task,
        optimizer=of("optimizer", *optimizers),
        schedule=of(
            "schedule",
            "none",
            "none",
            "none",
            "step",
            "multistep",
            "exponential",
            "plateau",
            "cosine",
            "cosine",
            "onecycle",
            "lambda",
            "lambda",
            "sequential",
            "by hand",
        ),
        clipping=of("clipping", "none", "none", "norm", "norm", "value", "by hand"),
        clearing=of("clearing", "of the optimizer", "of the optimizer", "to zero", "of the model", "by hand"),
        clear_when=of("clear_when", "first", "first", "before backward", "last"),
        accumulation=of("accumulation", 1, 1, 1, 1, 2, 3, 4),
        ragged=maybe("choice.ragged", 0.5),
        precision=of(
            "precision",
            *["fp32"] * 6,
            "bf16 autocast",
            "bf16 autocast",
            "fp16 scaler",
            *(["bf16"] if supports.get("pure_bf16") else []),
        ),
        average=of("average", "none", "none", "none", "none", "by hand", "torch"),
        groups=of("groups", "none", "none", "decay", "trainable"),
        evaluation=of("evaluation", "no grad", "inference mode"),
        checkpoint=of("checkpoint", "none", "none", "best", "all"),
        data=of(
            "data",
            "loader",
            "loader",
            "dataset",
            "dataset",
            "generator",
            "manual",
            "iterable",
            "sampler",
            "curriculum",
            "windows",
        ),
        workers=of("workers", 0, 0, 0, 1, 2),
        drop_last=maybe("choice.drop_last", 0.4),
        compile=bool(supports.get("compile")) and maybe("choice.compile", 0.08),
        activation_checkpointing=pick("choice.ac", [""] * 8 + ["reentrant", "non-reentrant"])
        if supports.get("activation_checkpointing")
        else "",
        epochs=of("epochs", 3, 4, 5, 6),
        batch_size=of("batch_size", 16, 24, 32),
        ranks=int(supports.get("ranks", 1)),
        samples=of("samples", 256, 320, 400),
    )
    return consistent(chosen)


def consistent(chosen: Choices) -> Choices:
    """The choices without combinations that make no sense together."""
    if chosen.precision == "bf16":
        chosen = replace(chosen, average="none")
    if chosen.compile:
        chosen = replace(chosen, average="none", activation_checkpointing="", checkpoint="none")
    if chosen.accumulation > 1:
        chosen = replace(chosen, ragged=chosen.ragged and chosen.data in ("loader", "dataset", "sampler", "windows"))
        if chosen.schedule == "by hand":
            chosen = replace(chosen, schedule="lambda")
    if chosen.data != "dataset":
        chosen = replace(chosen, workers=0)
    return chosen
