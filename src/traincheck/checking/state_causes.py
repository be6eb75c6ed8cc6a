"""Known causes that lie in how a run is set up: what a model, an optimizer or a schedule is when it is put to use."""

from __future__ import annotations

from traincheck.checking.cause import Cause, says

STATE_CAUSES: tuple[Cause, ...] = (
    Cause(
        1,
        "An overridden train() was never called",
        "The class extends train() to freeze stages or keep statistics, but a new module is in training mode without "
        "it. So nothing calls it, and what it does has no effect: frozen stages train along.",
        (
            "Call model.train() before the first step, also when the model is new.",
            "Or do in the constructor, too, what train() does.",
        ),
        says("has taken effect", about="own_train"),
    ),
    Cause(
        1,
        "An attribute of a module was changed by other code",
        "A number or name that the module was built with is another one when the model is first called: something "
        "that prepares the model (an engine's initialize, a wrapper) overwrites an attribute of the same name.",
        (
            "Search what runs between building the model and its first call for writes to this attribute.",
            "Was anything derived from it in between: a placement, a rank, a file name?",
        ),
        says("is as built"),
    ),
    Cause(
        1,
        "A buffer of random numbers is used before it is updated",
        "Training updates this buffer, but an evaluation before training used the random numbers that it begins with, "
        "which mean nothing: an estimate (a power iteration, a running mean) that has not run can be off by orders of "
        "magnitude.",
        ("Run the first update when the buffer is made (or load it), or evaluate after the first training step.",),
        says("is updated before it is used"),
    ),
    Cause(
        1,
        "A restart loses a setting of the optimizer",
        "The optimizer goes on where another one stopped, but with another value of this setting: the checkpoint does "
        "not keep it, or it is made anew from what was loaded. A lost initial_lr becomes the rate of the moment, which "
        "the schedule then takes for its peak.",
        ("Save and load all entries of the parameter groups, or build the scheduler before the state is loaded.",),
        says("takes over"),
    ),
    Cause(
        7,
        "A scheduler that counts epochs is stepped after each batch",
        "The scheduler was made for fewer steps than one epoch has batches, so the learning rate is at its floor (or "
        "rises again) within the first epoch instead of falling over the whole training.",
        ("Call scheduler.step() once per epoch, after the loop over batches; or make it for epochs times batches.",),
        says("covers a pass"),
    ),
)
"""Each is told by the one verb of its rules; see known_causes.py for the others."""
