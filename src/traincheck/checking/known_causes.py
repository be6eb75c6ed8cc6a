"""Known causes: what a senior colleague would say of a violated rule.

Each entry tells which violations it explains, by what the rule is about (never by a script or a library's name), and
what to look at first. The first entry that fits is the likely cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traincheck.checking.cause import Cause, says
from traincheck.checking.hardware_causes import HARDWARE_CAUSES
from traincheck.checking.rank_causes import RANK_CAUSES
from traincheck.checking.state_causes import STATE_CAUSES
from traincheck.checking.update_causes import UPDATE_CAUSES
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Property


def _is(rule: Invariant, *, thing: str, detail: str = "", verbs: Sequence[str] = ()) -> bool:
    prop = rule.property
    return prop.object == thing and (not detail or prop.detail == detail) and (not verbs or prop.verb in verbs)


def _step(rule: Invariant) -> bool:
    return rule.subject.api.endswith(".step") and ".optim." in rule.subject.api


def _nothing_updated(violation: Violation) -> bool:
    rule = violation.invariant
    return _is(rule, thing="parameter.data", detail="changes") and rule.subject.grain in ("call", "cycle")


def _some_not_updated(violation: Violation) -> bool:
    rule = violation.invariant
    return _is(rule, thing="parameter.data", detail="changes") and rule.subject.grain == "parameter.data"


def _model_not_updated(violation: Violation) -> bool:
    return violation.invariant.property.verb == "moves"


def _not_cleared(violation: Violation) -> bool:
    return _is(violation.invariant, thing="parameter.grad", detail="is cleared")


def _not_filled(violation: Violation) -> bool:
    return _is(violation.invariant, thing="parameter.grad", detail="is filled")


def _wrong_mode(violation: Violation) -> bool:
    prop = violation.invariant.property
    # What was not called at all is in no mode; in the other one, the like of it was seen.
    called = prop.verb != "contains call" or any(line.startswith("here ") for line in violation.evidence)
    return called and prop.object.endswith(".forward") and prop.detail.startswith("training=")


def _order(violation: Violation) -> bool:
    return violation.invariant.property.detail.startswith("then ")


def _gives_back(thing: str) -> Callable[[Violation], bool]:
    """Fits rules about what calls of a kind give back."""
    return lambda violation: violation.invariant.property == Property("gives back", thing)


def _setting(violation: Violation) -> bool:
    return bool(violation.invariant.program)


def _either(*tests: Callable[[Violation], bool]) -> Callable[[Violation], bool]:
    return lambda violation: any(fits(violation) for fits in tests)


CAUSES: tuple[Cause, ...] = (
    *HARDWARE_CAUSES,
    *STATE_CAUSES,
    *UPDATE_CAUSES,
    Cause(
        90,
        "A setting was changed",
        "The program runs with another setting than in its good runs. That may be meant; learn again if it is.",
        ("If it is not meant, look at the arguments and the configuration of this run.",),
        _setting,
    ),
    Cause(
        1,
        "Training runs in evaluation mode",
        "The model was called with gradients on but in evaluation mode: eval() was called and train() never after it. "
        "Dropout is off and batch norms no longer learn their statistics.",
        (
            "Call model.train() at the start of every epoch, or right after the validation.",
            "Look for the last model.eval() before this step.",
        ),
        _wrong_mode,
    ),
    Cause(
        1,
        "The optimizer steps without a backward",
        "The model was called in training and the optimizer made its step, but no backward ran in between and no "
        "gradient was set: there is nothing to learn from, and the update does nothing.",
        (
            "Is loss.backward() called on every way that leads to this step?",
            "Is it the loss of this model: not detached, nor computed without gradients?",
        ),
        says("learns from"),
    ),
    Cause(
        2,
        "The optimizer step changes no parameter",
        "The optimizer ran, but none of the parameters that it holds changed: they got no gradient. "
        "Either they are frozen, or they are not the ones that the model uses (copies, or those from before the model "
        "was wrapped, moved or its layers replaced).",
        (
            "Compare the parameters given to the optimizer with model.parameters(): same objects, requires_grad True?",
            "Build the optimizer after freezing, wrapping and replacing layers.",
        ),
        _nothing_updated,
    ),
    Cause(
        3,
        "Gradients are not cleared between steps",
        "Gradients of the last step were still there when the next backward ran, so they add up from step to step: "
        "zero_grad is missing or does not reach these parameters.",
        (
            "Call optimizer.zero_grad() once in every step, before the backward or after the step.",
            "If gradients are accumulated on purpose, clear them after each optimizer step.",
        ),
        _not_cleared,
    ),
    Cause(
        4,
        "Parameters of the model are not updated",
        "These parameters of the model (or their copies in the optimizer) got a gradient, but the step did not change "
        "them. Either no optimizer holds them, or it passes them over, or it updates copies (masters) that are not "
        "written back to the tensors that the model computes with.",
        (
            "Compare the tensors in optimizer.param_groups with model.parameters(): are they the same objects?",
            "Where the optimizer holds master copies, look at what writes them back to the model: does it reach every "
            "group, and the parameters that the model has now?",
        ),
        _model_not_updated,
    ),
    Cause(
        4,
        "Some parameters with a gradient are never updated",
        "These parameters require a gradient and got one, but the optimizer step left them as they were: no optimizer "
        "holds them, or the one that does passes them over.",
        (
            "Check that every trainable parameter is in one of the optimizer's groups.",
            "If they should be frozen, set requires_grad to False.",
        ),
        _some_not_updated,
    ),
    Cause(
        5,
        "The backward leaves no gradient",
        "A backward ran, but the parameters that the optimizer holds got no gradient from it: the loss does not depend "
        "on them (detached, .item(), no_grad), or they are frozen.",
        ("Check what the loss is computed from, and requires_grad of these parameters.",),
        _not_filled,
    ),
    Cause(
        6,
        "Two calls happen in the wrong order",
        "Both calls change the same state, and their order is the other way round than in good runs.",
        ("Swap the two calls.",),
        _order,
    ),
    Cause(
        7,
        "A checkpoint differs from what is live",
        "What was saved is not what the program holds at this moment: values were changed, mixed up or are those of "
        "another time, on the way from state_dict() to the file. A run that is resumed from it goes on with a "
        "wrong model.",
        ("Look at what happens between state_dict() and the call that saves.",),
        says("saved equals live"),
    ),
    Cause(
        7,
        "A checkpoint is incomplete",
        "Parameters or buffers of the model are missing from what was saved; loading it leaves them as they "
        "happen to be.",
        ("Save the whole state_dict(), with frozen parameters and buffers, and under the names that loading expects.",),
        says("is saved"),
    ),
    Cause(
        7,
        "Nothing of the checkpoint was loaded",
        "No name in what was loaded is one of the model's, and strict=False keeps silent about it: the model trains on "
        "from where it was.",
        (
            "Compare the names in the checkpoint with the model's: is there a prefix (module. of a wrapped model)?",
            "Look at what load_state_dict returns: the missing and the unexpected keys.",
        ),
        says("takes something"),
    ),
    Cause(
        7,
        "Loading did not restore what was saved",
        "After the load, the model holds other values than those that were handed in, or lacks some of them.",
        ("Compare the names in the checkpoint with those of the model; is strict=False hiding a mismatch?",),
        lambda violation: violation.invariant.property.verb in ("live equals loaded", "is loaded"),
    ),
    Cause(
        8,
        "The run stops before the end of its data",
        "A pass over the data loader ended before it had as many batches as the loader announced, though the passes "
        "before it went to the end. Where training ends there, its last epochs are missing: the total number of steps "
        "(max_steps) was computed too low.",
        ("Look at how the total number of steps is computed: is a division rounded down, a last group left out?",),
        says("reaches", about="loader."),
    ),
    Cause(
        8,
        "The learning rate schedule does not fit the length of the run",
        "The scheduler was built for another number of steps than the run makes.",
        ("Compare the number of steps given to the scheduler with the number of optimizer steps.",),
        lambda violation: violation.invariant.property.object == "scheduler.total",
    ),
    Cause(
        9,
        "Memory is initialised again and again",
        "One place of the program fills most of what it fills several times in one go, so that the initialisation runs "
        "over the same weights for every module around them.",
        ("Initialise each module's own parameters only, not those of its children as well.",),
        says("fills"),
    ),
    Cause(
        9,
        "Workers of a data loader draw the same random numbers",
        "Two workers began on their batches in the same random state, so that they augment their samples alike.",
        (
            "Seed each worker differently (worker_init_fn), and make random generators in the worker, not in the "
            "dataset.",
        ),
        says("states of workers"),
    ),
    Cause(
        9,
        "The data comes in the same order in every pass",
        "The batches of this pass are those of the pass before, in the same order.",
        ("Is shuffle on, and does a distributed sampler get set_epoch() in each epoch?",),
        says("differs between passes"),
    ),
    Cause(
        10,
        "A function is told another mode than its module is in",
        "What depends on training or evaluation (dropout, statistics) is switched on or off against the module's mode.",
        ("Pass self.training on, or 0.0 for dropout in evaluation.",),
        says("argument agrees"),
    ),
    Cause(
        3,
        "Half precision without loss scaling",
        "The forward pass ran under float16 autocast, but the loss went into the backward unscaled: gradients below "
        "6e-8 become zero in float16 (underflow), so that parts of the model learn little or nothing.",
        ("Use torch.amp.GradScaler (scale, step, update), or autocast to bfloat16, which needs no scaler.",),
        says("argument is scaled"),
    ),
    Cause(
        10,
        "The loss is given what it does not expect",
        "The prediction that goes into the loss is of another kind than in good runs (rows that sum to one are "
        "probabilities where scores are expected, and the other way round).",
        ("Look at what is applied to the model's output before the loss; cross_entropy expects raw scores.",),
        says("argument values"),
    ),
    Cause(
        10,
        "A normalisation runs over a single element",
        "The dimension that the function normalises has one element only, so that its result is constant and no "
        "gradient "
        "flows through it.",
        ("Check the shape and the dimension given.",),
        says("argument size"),
    ),
    Cause(
        11,
        "Autocast does not reach a computation",
        "Within an autocast region, a call whose inputs had to be cast returned another data type than autocast "
        "asks for.",
        (
            "Look for a nested region with autocast disabled, or a kernel of the program's own that autocast does not "
            "know.",
        ),
        _either(says("returns dtype"), _gives_back("matrix products of autocast")),
    ),
    Cause(
        11,
        "A result has another size than what it was made from",
        "In good runs the result has a size of one of its inputs; here samples were lost or put together on the way.",
        ("Look at how the batch is put together and split.",),
        says("returns size"),
    ),
    Cause(
        10,
        "A batch was made into one sample",
        "The largest tensor of the batch has a single row, while others have one for each sample: the whole batch was "
        "taken for a sample on the way (one nesting of lists too many or too few).",
        ("Look at the collate function and what it calls: how are the samples put together?",),
        _gives_back("several rows"),
    ),
    Cause(
        10,
        "A normalising layer does not normalise",
        "The root mean square of the layer's result is far from that of its weight: it divides by something else than "
        "the deviation or the root mean square (an L2 norm, a sum), or over another dimension.",
        ("Look at the forward of this layer: what does it divide by, and over which dimension?",),
        _gives_back("the scale of its weight"),
    ),
    Cause(
        10,
        "Fewer or more layers are built than configured",
        "The module was given a number of layers, and no class of modules occurs as often in what it built.",
        ("Look at how the layers are counted and divided: is a remainder lost in //?",),
        _gives_back("as many layers"),
    ),
    Cause(
        11,
        "A result is longer or shorter than was asked for",
        "The length of the result goes beyond the bound that the call was given.",
        ("Look at how the limit is computed, and what is cut off before and after that.",),
        _either(
            lambda violation: violation.invariant.property.verb in ("returns length", "returns width", "returns more"),
            _gives_back("no more than is asked for"),
        ),
    ),
    Cause(
        1,
        "Gradient clipping leaves some gradients out",
        "Clipping by the norm scales all gradients by one factor, so that they keep their direction. Here some were "
        "scaled and others were left as they were or scaled otherwise.",
        ("Compare the list of gradients that is scaled with the list that the norm is computed from.",),
        says("leaves norm", about="scaled alike"),
    ),
    Cause(
        11,
        "Gradient clipping does not clip",
        "After the call the norm of the gradients is above the limit that it was given.",
        ("Look at how the factor is computed: the smaller of one and limit / norm.",),
        says("leaves norm"),
    ),
    Cause(
        5,
        "Gradients no longer flow through a call",
        "An input requires a gradient, but the result does not: the graph ends here (detach, .item(), .data, no_grad).",
        ("Look for what takes the result out of the graph.",),
        says("returns", about="requires_grad"),
    ),
    Cause(
        5,
        "A value that is not finite appears",
        "All that went into the call was finite, and the result is not.",
        ("Look at this call's inputs: a division by zero, a logarithm of zero, an overflow in low precision?",),
        says("returns", about="finite"),
    ),
    Cause(
        4,
        "Something that should stay as it is was changed",
        "Between two steps of the optimizer, what good runs never change was changed: whether a parameter is "
        "trainable, "
        "its data type, a hyperparameter.",
        ("Look at what ran since the last step: saving, wrapping, loading, an evaluation.",),
        lambda violation: violation.invariant.property.verb in ("stays", "keeps", "restores"),
    ),
    Cause(
        6,
        "The optimizer does not use the learning rate of its scheduler",
        "The rate in the optimizer's groups is not the one that the scheduler has set, or is far too high at the "
        "start.",
        ("Build the scheduler before the first step, and let nothing else write the learning rate.",),
        lambda violation: violation.invariant.property.object in ("scheduler.lr", "hyperparameter.lr"),
    ),
    Cause(
        1,
        "A parameter is passed over when the weights are initialised",
        "A function that fills each parameter it is given left this one as it was: it keeps the start value (and the "
        "spread) that its layer made, and not the one that was asked for.",
        ("Look for a condition in this function that leaves parameters out: sharded, wrapped, frozen or tied ones.",),
        lambda violation: (
            violation.invariant.property.verb == "leaves argument" and violation.invariant.property.detail == "changed"
        ),
    ),
    *RANK_CAUSES,
)
"""The causes that are known, by the order in which they are tried."""
