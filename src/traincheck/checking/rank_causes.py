"""Causes of trouble between ranks, see known_causes.py."""

from __future__ import annotations

from collections.abc import Callable

from traincheck.checking.cause import Cause, says
from traincheck.relations.consistent.replicas import THOUGH_ALIKE, THOUGH_KEPT
from traincheck.vocab.collectives import WAIT
from traincheck.vocab.finding import Violation
from traincheck.vocab.occasion import Property


def _about_ranks(thing: str) -> Callable[[Violation], bool]:
    """Fits rules which say that `thing` is the same on all ranks."""
    return lambda violation: violation.invariant.property == Property("same on ranks", thing)


def _update_differs(violation: Violation) -> bool:
    return _about_ranks("parameter.data")(violation) and THOUGH_ALIKE in violation.note


def _went_apart(violation: Violation) -> bool:
    return _about_ranks("parameter.used_data")(violation) and THOUGH_KEPT in violation.note


RANK_CAUSES: tuple[Cause, ...] = (
    Cause(
        1,
        "Replicas got different updates out of the same gradients",
        "A parameter and its gradient were the same on all ranks before the update, and the parameter is not after it: "
        "something between reading the gradient and writing the parameter treats the ranks differently (clipping, "
        "scaling, the state or the settings of the optimizer), or the hardware computed wrongly.",
        (
            "Look at what clips or scales gradients: is it done for this parameter on every rank?",
            "Compare the optimizer's settings and state over the ranks.",
        ),
        _update_differs,
    ),
    Cause(
        2,
        "Gradients of replicas differ between ranks",
        "The parameter is the same on all ranks, but the gradients that the update uses are not: they were not reduced "
        "over the ranks, or what the reduction gave was changed on one of them. From this update on the replicas drift "
        "apart.",
        (
            "Is the model called through its distributed wrapper, and not the module inside of it? Were its parameters "
            "replaced or moved since it was wrapped, so that its hooks were lost?",
            "Look at the collective that reduces these gradients, and at what is done with its result on each rank.",
        ),
        _about_ranks("parameter.used_grad"),
    ),
    Cause(
        1,
        "A replica was changed between two updates",
        "The parameter was the same on all ranks after an earlier update, and is not when the next one begins: "
        "something else than an update has written to it, and not on every rank (weights loaded, averaged, clipped or "
        "initialised anew on one rank, or memory that was overwritten).",
        ("Look at what touches parameters after the update and before the next one: is it done on every rank alike?",),
        _went_apart,
    ),
    Cause(
        2,
        "Buffers of replicas differ between ranks",
        "A buffer, such as the running statistics of a normalising layer, is not the same on all ranks when the model "
        "is used: each rank evaluates with its own, and only those of the rank that saves are kept.",
        (
            "Is the model called through its distributed wrapper, and does that broadcast buffers? Where statistics "
            "are to be of all ranks together, a synchronised layer does that.",
        ),
        _about_ranks("buffer.used_data"),
    ),
    Cause(
        2,
        "Replicas do not begin with the same parameters",
        "A parameter that ought to be the same on all ranks has another value on each of them to begin with: the "
        "weights were not sent to all ranks at the start, or not all of them arrived.",
        ("Look at how weights are broadcast or loaded at the start: does every rank end up with all of them?",),
        lambda violation: (
            _about_ranks("parameter.used_data")(violation) or _about_ranks("parameter.first_data")(violation)
        ),
    ),
    Cause(
        3,
        "Ranks have drifted apart",
        "What should be the same on all ranks is not: a gradient was not reduced, or was changed on one rank only.",
        ("Look at the last collective before this step, and at what is done on one rank only.",),
        says("same on ranks"),
    ),
    Cause(
        1,
        "Ranks train on the same batch",
        "Each rank holds a copy of the whole model, and all of them are given the same batch in the same step: the "
        "samples are not divided among the ranks, so the others add nothing to what one rank does.",
        (
            "Does the data loader get a DistributedSampler, or each rank another shard or seed of the data?",
            "Is set_epoch called, and are rank and world size those of this job?",
        ),
        lambda violation: violation.invariant.property.verb == "differs on ranks",
        stands_alone=True,
    ),
    Cause(
        1,
        "What is sent was changed while it was on its way",
        "The memory of an asynchronous send was overwritten or reused before its end was waited for. It may be read at "
        "any time until then, so the other rank may receive what was written later, in place of what was meant.",
        (
            "Keep the buffer that isend was given untouched until wait() has returned: who writes to it in between?",
            "If buffers are reused, give them back when the wait is over, and not when the send is started.",
        ),
        lambda violation: (
            violation.invariant.subject.api == WAIT and violation.invariant.property.detail == "unchanged"
        ),
    ),
    Cause(
        1,
        "Ranks meet in a collective for different reasons",
        "The ranks make as many collectives, but one has left one out or made another: what the first means for one "
        "group or purpose is combined with what the other means for another. Sizes match, so nothing hangs.",
        (
            "Look for a collective such as all_reduce that is called in a loop or behind a condition which is not the "
            "same on every rank (a stage without experts, an empty group of parameters).",
        ),
        says("calls on ranks", about="for the same purpose"),
    ),
    Cause(
        2,
        "Ranks exchange blocks that do not fit together",
        "What ranks send each other differs in size or type from what is expected, or arrives otherwise than it was "
        "sent: what does not fit is cut off, or filled up with what was there before.",
        (
            "Look at how each rank computes the size of what it sends (a capacity, a number of tokens): is it agreed "
            "upon over the ranks before the exchange, by a maximum over the group for instance?",
        ),
        says("messages"),
    ),
    Cause(
        2,
        "Ranks do not make the same collective calls",
        "The collective calls of the ranks do not fit together: other calls, another order, or other sizes.",
        ("Look for branches that depend on the rank or on the data.",),
        says("calls on ranks"),
    ),
)
"""In the order in which they are tried."""
