"""The built-in rules about training, which no good run has to show: their subjects, properties and sentences.

TrainCheck deploys them with any other rules before the program starts. So they are declared here, without the relations
that judge them (`relations/periodic/zero_gradients.py`, `relations/periodic/unused_gradients.py`,
`relations/periodic/uninitialized.py`, `relations/periodic/device_copies.py`).
"""

from __future__ import annotations

from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.properties import ARE_USED, COPIES_AGREE, IS_NOT_ZERO, IS_WRITTEN

STRETCH, USE, FIRST_USE, DEVICES = "stretch", "use", "first use", "devices"
"""The grains of the rules: consecutive steps, the use of gradients in a run, the first call of a model, and the devices
of one process."""

GRAD = "parameter.grad"
RUN, UNUSED_GRADIENTS, IDLE_OPTIMIZER = "run", "unused_gradients", "idle_optimizer"
UNUSED, IDLE = f"{RUN}.{UNUSED_GRADIENTS}", f"{RUN}.{IDLE_OPTIMIZER}"

PARAMETER, UNINITIALISED = "parameter", "uninitialised"
MEMORY = f"{PARAMETER}.{UNINITIALISED}"
DIFFERENT_COPIES = "different_copies"
COPIES = f"{PARAMETER}.{DIFFERENT_COPIES}"

NOT_ALL_ZERO = Property(IS_NOT_ZERO, GRAD, "in some step")
NOT_ZERO_FOR_LONG = Property(IS_NOT_ZERO, GRAD, "for each parameter")
USED = Property(ARE_USED, GRAD, "by an update")
WRITTEN = Property(IS_WRITTEN, "parameter.data", "before it is used")
SAME_COPIES = Property(COPIES_AGREE, "parameter.data", "on all devices")

FIRST = 10
"""The first steps. An initialisation with zeros (adapters, a last layer) ends after one or two; a run that learns
nothing for ten steps is suspicious."""

LONG = 200
"""Steps: rare tokens, experts and branches appear in fewer as a rule."""


def sentence_of(subject: Subject, prop: Property) -> str:
    """One of these rules as a sentence."""
    if prop == NOT_ALL_ZERO:
        return f"in one of the first {FIRST} steps at least, some gradient is not zero"
    if prop == NOT_ZERO_FOR_LONG:
        return f"a gradient that is computed is not zero in each of {LONG} steps in a row"
    if prop == WRITTEN:
        return "a parameter whose memory to_empty() allocated is initialised or loaded before the model is called"
    if prop == SAME_COPIES:
        return "all devices that hold a copy of a replicated array hold the same values"
    if subject.api == IDLE:
        return "an optimizer whose parameters get gradients in training is stepped"
    return "parameters that get gradients in training are updated"
