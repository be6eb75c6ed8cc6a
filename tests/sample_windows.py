"""Windows written by hand, call by call, for tests of what relations say of readings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from traincheck.vocab.events import (
    ANNOUNCED,
    FUNCTION,
    LIFECYCLE,
    LIVE,
    MODULE,
    NO_CALL,
    PROJECT,
    SAVED,
    Call,
    Change,
    Reading,
    TensorSummary,
    Window,
)
from traincheck.vocab.facts import Facts, FactValue, facts
from traincheck.vocab.occasion import Occasion, Property, Subject

UPDATE = "torch.optim.Optimizer.step"
SCHEDULE = "torch.optim.lr_scheduler.LRScheduler.step"
FORWARD = "torch.nn.Module.forward"
ITER, NEXT = "torch.utils.data.DataLoader.__iter__", "torch.utils.data.DataLoader.__next__"

ReadingFields = tuple[str, str, FactValue] | tuple[str, str, FactValue, str] | tuple[str, str, FactValue, str, Facts]
"""A reading: what (`hyperparameter.lr`), variable, value, and where it is not live the role, and the context."""


class Script:
    """Writes windows: `window` begins one, and calls, changes and readings are added to the last."""

    def __init__(self, *, rank: int = 0) -> None:
        self._rank = rank
        self._seq = 0
        self._windows: list[tuple[str, int, list[Call], list[Change], list[Reading]]] = []
        self._steps = 0

    def window(self, stage: str = "train") -> Script:
        self._steps += stage == "train"
        self._windows.append((stage, self._steps, [], [], []))
        return self

    def call(
        self,
        *levels: str,
        receiver: str = "",
        reads: Iterable[ReadingFields] = (),
        changes: Iterable[dict[str, Any]] = (),
        inside: int = NO_CALL,
        kind: str = LIFECYCLE,
        ended: bool = True,
        context: Facts = (),
        args: Facts = (),
        result: Facts = (),
        tensors: tuple[TensorSummary, ...] = (),
    ) -> int:
        """Add a call; its position. What it reads and changes comes after its start and before its end."""
        seq = self._next()
        for fields in reads:
            self.read(*fields, call=seq)
        for fields in changes:
            self._windows[-1][3].append(Change(seq=self._next(), call=seq, **{**CHANGED, **fields}))
        end = self._next() if ended else -1
        self._windows[-1][2].append(
            Call(seq, end, inside, kind, levels, receiver, "", context, args, result, tensors=tensors)
        )
        return seq

    def read(
        self, quantity: str, variable: str, value: FactValue, role: str = LIVE, context: Facts = (), call: int = NO_CALL
    ) -> Script:
        kind, _, attribute = quantity.partition(".")
        reading = Reading(self._next(), call, variable, kind, attribute, value, role, context)
        self._windows[-1][4].append(reading)
        return self

    def between(self, change: dict[str, Any]) -> Script:
        """Add a change that belongs to no call."""
        self._windows[-1][3].append(Change(seq=self._next(), call=NO_CALL, **{**CHANGED, **change}))
        return self

    def step(
        self, *reads: ReadingFields, receiver: str = "SGD", changes: Iterable[dict[str, Any]] = (), **other: Any
    ) -> int:
        return self.call(
            f"torch.optim.{receiver}.step", UPDATE, receiver=receiver, reads=reads, changes=changes, **other
        )

    def schedule(self, *reads: ReadingFields, receiver: str = "StepLR", **other: Any) -> int:
        return self.call(f"torch.optim.lr_scheduler.{receiver}.step", SCHEDULE, receiver=receiver, reads=reads, **other)

    def forward(self, *reads: ReadingFields, receiver: str = "Net", grad: bool = True) -> int:
        context = facts(grad_mode="on" if grad else "off", outermost=True)
        return self.call(
            f"train.{receiver}.forward", FORWARD, receiver=receiver, kind=MODULE, reads=reads, context=context
        )

    def iterate(self, loader: str = "DataLoader#1", length: int | None = None, *reads: ReadingFields) -> int:
        announced = [] if length is None else [("loader.length", loader, length, "announced")]
        return self.call(ITER, receiver=loader, reads=[*reads, *announced])

    def exhaust(
        self, batches: int, loader: str = "DataLoader#1", order: int | None = None, *, last: bool = True
    ) -> int:
        pass_facts = facts(last_batch=last)
        reads: list[ReadingFields] = [("loader.batches", loader, batches, LIVE, pass_facts)]
        if order is not None:
            reads.append(("loader.order", loader, order, LIVE, pass_facts))
        return self.call(NEXT, receiver=loader, reads=reads, context=pass_facts)

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1

    @property
    def windows(self) -> list[Window]:
        return [
            Window(
                index,
                step,
                stage,
                tuple(sorted(calls, key=lambda call: call.seq)),
                tuple(changes),
                rank=self._rank,
                readings=tuple(sorted(readings, key=lambda reading: reading.seq)),
            )
            for index, (stage, step, calls, changes, readings) in enumerate(self._windows)
        ]


CHANGED: dict[str, Any] = {
    "variable": "Net.w",
    "kind": "parameter",
    "attribute": "data",
    "before": "some",
    "after": "some",
    "changed": True,
}
"""A change, where a test does not say otherwise."""


def occasions(relation: Any, windows: Sequence[Window], subject: Subject) -> list[Occasion]:
    """Return the occasions of a new instance of `relation` for `subject`."""
    instance = relation()
    return [occasion for window in windows for occasion in instance.occasions(window) if occasion.subject == subject]


def verdicts(judged_occasions: Iterable[Occasion], prop: Property) -> list[bool]:
    """Return for each occasion that judged `prop` whether it held."""
    return [
        prop in occasion.held
        for occasion in judged_occasions
        if prop in occasion.held or prop in (occasion.failed or ())
    ]


BACKWARD, CLEAR = "torch.autograd.backward", "torch.optim.Optimizer.zero_grad"
GROUP = "SGD.param_groups[0]"
WEIGHT = facts(kind="parameter", requires_grad=True, tied=False, held="this", owned=True)


def training(epochs: int = 4, batches: int = 5) -> Script:
    """A small program that does something of everything: it trains, validates, steps a scheduler, saves."""
    script = Script().window("setup")
    size = TensorSummary("tensor", "float32", (4, 8), True, "Net.w")
    script.call("torch.nn.init.normal_", kind=FUNCTION, args=facts(mean=0.0, std=0.02), tensors=(size,))
    for epoch in range(epochs):
        script.window().iterate("DataLoader#1", batches, *([] if epoch else [("loader.batch_size", "DataLoader#1", 4)]))
        for batch in range(batches):
            _training_step(script, epoch, batch)
            script.window() if batch + 1 < batches else script.window("eval")
        script.exhaust(batches, order=epoch)
        script.forward(("module.training", "Net", False), grad=False)
        script.schedule(
            ("scheduler.lr", "StepLR", 0.1 - 0.01 * (epoch + 1)),
            ("scheduler.last_epoch", "StepLR", epoch + 1),
            *([] if epoch else [("scheduler.total", "StepLR", epochs, ANNOUNCED)]),
        )
    script.window("end").call(
        "torch.save", reads=[("parameter.data", "Net.w", 7, role, WEIGHT) for role in (LIVE, SAVED)]
    )
    script.read("run.steps", "run", epochs * batches)
    return script


def _training_step(script: Script, epoch: int, batch: int) -> None:
    first, begins = epoch == batch == 0, batch == 0
    number = 100 * epoch + batch
    script.call(NEXT, receiver="DataLoader#1")
    script.call(
        "torch.optim.SGD.zero_grad",
        CLEAR,
        receiver="SGD",
        changes=[] if first else [{"attribute": "grad", "after": "none", "owner": "SGD", "context": WEIGHT}],
    )
    model = script.forward(*([("module.training", "Net", True)] if begins else []))
    batched = TensorSummary("input", "float32", (4, 8), fingerprint=number, facts=facts(finite=True))
    weight = TensorSummary("weight", "float32", (2, 8), True, "Net.w", facts=facts(finite=True))
    result = TensorSummary("result", "float32", (4, 2), True, "~1", facts=facts(finite=True))
    script.call(
        "torch.nn.functional.linear",
        kind=FUNCTION,
        inside=model,
        context=facts(autocast="off", grad_mode="on", training=True),
        result=facts(dtype="float32", requires_grad=True),
        tensors=(batched, weight, result),
    )
    script.call(
        "torch.nn.functional.dropout",
        kind=FUNCTION,
        inside=model,
        context=facts(autocast="off", grad_mode="on", training=True),
        args=facts(p=0.5, training=True),
        result=facts(dtype="float32", requires_grad=True),
        tensors=(batched, result),
    )
    script.call(
        "train.noisy",
        kind=PROJECT,
        context=facts(autocast="off", grad_mode="on"),
        args=facts(scale=0.0),
        tensors=(batched, batched._replace(role="result", fingerprint=number + 1)),
    )
    script.call(
        BACKWARD,
        changes=[{"attribute": "grad", "before": "none", "owner": "SGD", "context": WEIGHT, "fingerprint": number}],
    )
    reads: list[ReadingFields] = [("optimizer_state.step", "SGD", epoch * 5 + batch + 1)]
    if begins:
        reads.append(("hyperparameter.lr", GROUP, 0.1 - 0.01 * epoch))
    if first:
        reads += [
            ("hyperparameter.weight_decay", GROUP, 0.0),
            ("hyperparameter.keys", GROUP, "lr+weight_decay"),
            ("optimizer.class", "SGD", "torch.optim.SGD"),
            ("parameter.requires_grad", "Net.w", True, LIVE, WEIGHT),
        ]
    context = facts(grads="some", closure=False, lr="positive", lost=False)
    script.step(*reads, changes=[{"owner": "SGD", "context": WEIGHT, "fingerprint": number}], context=context)
