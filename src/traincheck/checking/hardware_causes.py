"""Causes that lie in the machine, see known_causes.py."""

from __future__ import annotations

from collections.abc import Callable

from traincheck.checking.cause import Cause
from traincheck.relations.consistent.replayed_steps import DECIDED, ELSEWHERE_ENDS, EXACT, REPEATS, WAYS
from traincheck.vocab.finding import Violation


def _ended(way: str) -> Callable[[Violation], bool]:
    """Fits rules about what is executed again, where that came out in this way."""
    return lambda violation: violation.invariant.property.verb == REPEATS and violation.note.endswith(WAYS[way])


_DEVICE = (
    "Screen the device: traincheck sdc screen, against fingerprints of one that is sound.",
    "Look for errors that the machine has noted (ECC, Xid, machine checks), and take it out if they recur.",
)

HARDWARE_CAUSES: tuple[Cause, ...] = (
    Cause(
        1,
        "A computation was wrong once",
        "The same computation from the same state gave other bits than when it was executed again, and other steps "
        "repeat exactly: the device that computed it was wrong for a moment. What it computed is in the weights.",
        ("Go back to a checkpoint from before this step if the run is to be trusted.", *_DEVICE),
        _ended("transient"),
    ),
    Cause(
        1,
        "A device computes something else each time",
        "The same computation from the same state gave another result in each of several executions, and other steps "
        "repeat exactly: the device that computes it is defective. What it computed is in the weights.",
        ("Stop the run, and go back to a checkpoint from before this step.", *_DEVICE),
        _ended("persistent"),
    ),
    Cause(
        1,
        "Two ranks compute different things from the same",
        "What one rank computed was computed again on another one, from the same parameters, arguments and random "
        "state, and gave other bits, each time: a device computes wrongly, always in the same way, so that it does not "
        "notice itself. (Unlike software or devices would do that, too.)",
        ("Are the devices and the releases of torch the same on these ranks?", *_DEVICE),
        lambda violation: violation.invariant.property == EXACT and violation.note.endswith(ELSEWHERE_ENDS),
    ),
    Cause(
        1,
        "A computation does not repeat any more",
        "Steps that were executed again were the same to the last bit, and from this one on none is. Either the "
        "program does something from here on that cannot be executed again (a loss that uses the parameters beside the "
        "model's call, numbers from a generator of its own), or the device is defective for good.",
        (
            "Look at what changes in the program at this step: a phase, a schedule, a term of the loss.",
            *_DEVICE,
        ),
        lambda violation: violation.invariant.property == DECIDED,
    ),
)
