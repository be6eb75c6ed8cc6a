"""The built-in rules about training, which no good run has to show: their subjects, properties and sentences.

TrainCheck deploys them with any other rules before the program starts. So they are declared here, without the relations
that judge them (in `relations/periodic/`: `zero_gradients.py`, `gradient_use.py`, `model_use.py`, `model_modes.py`,
`loss_inputs.py`, `run_totals.py`, `reported_errors.py`).
"""

from __future__ import annotations

from traincheck.vocab.demand import CHECKPOINT, KEPT, MERGED, RESTARTED, RESUMED, RESUMED_HERE
from traincheck.vocab.occasion import RANKS, Property, Subject
from traincheck.vocab.properties import (
    ARE_USED,
    ARGUMENT_VALUES,
    AVERAGES,
    COPIES_AGREE,
    COUNTS,
    DIFFERS_BETWEEN_PASSES,
    DIFFERS_FROM_OTHERS,
    HAS_TAKEN_EFFECT,
    IS_CURRENT,
    IS_FINITE,
    IS_LOADED,
    IS_LOWER,
    IS_NOT_ZERO,
    IS_READ,
    IS_REGISTERED,
    IS_SEPARATE,
    IS_WRITTEN,
    MERGES,
    RUNS_IN,
    SAME_ON_RANKS,
    SCALES_BY_NORM,
    TAKES_OVER,
)

STRETCH, FLOW, LAYERS, MODE = "stretch", "flow", "layers", "mode"
"""Grains of rules: consecutive steps, the way of each gradient to an update, the layers of a model, and the mode of a
model that is trained."""

SHUFFLED, LOGITS, SHAPES, SUCCESSION, EVALUATION = "shuffled pass", "scores", "shapes", "succession", "evaluation"
"""Grains: samplers that shuffle, the input of a loss with logits, the shapes of a loss, an optimizer that replaces
another, and the calls of a model in an evaluation."""

REPORTED = "reported"
"""The grain of rules about errors that a source has decided by itself (relations/periodic/reported_errors.py)."""

MICRO_BATCHES = "micro-batches"
"""The grain of rules about losses that an update accumulates (relations/periodic/backward_before_step.py)."""

GRAD, PARAMETER, MODEL, AUTOCAST, SCHEDULER, RUN = (
    "parameter.grad",
    "parameter",
    "model",
    "autocast",
    "scheduler",
    "run",
)
UNUSED_GRADIENTS, IDLE_OPTIMIZER, UNINITIALISED = "unused_gradients", "idle_optimizer", "uninitialised"
SAME_START, STALE, NEVER_STEPPED, IDLE_REGION = "same_start", "stale_copy", "never_stepped", "idle_region"
UNREAD_SETTINGS, UNUSED_LAYERS, REPLACED, PRETRAINED = "unread_settings", "unused_layers", "replaced", "pretrained"
DIFFERENT_COPIES, ACTIVE, CUT_OFF = "different_copies", "active_without_gradients", "cut_off"
UNSET_STATISTICS, AVERAGE, DECAY_OF_GROUPS = "unset_statistics", "average", "decay_of_groups"
REPLACED_OVER_SAMPLES = "replaced_over_samples"
ATTENTION, HEADS = "attention", "heads"
LOSS, NOT_FINITE = "loss", "not_finite"
RANDOM_WEIGHTS, SHARED_HEAD = "random_weights", "shared_head"
GRADIENT, REDUCTION, REPLICA = "gradient", "reduction", "replica"
CLIPPING, SHARDS = "clipping", "shards"
LOADER, WORKER_SAMPLES = "loader", "worker_samples"
OWN_WEIGHTS, REUSED, UNIT = "own_weights", "reused_gradients", "unit"
"""The kinds and attributes of readings."""

UNUSED, IDLE = f"{RUN}.{UNUSED_GRADIENTS}", f"{RUN}.{IDLE_OPTIMIZER}"
MEMORY, EQUAL_LAYERS, COPIES, CUT_OFF_PARAMETERS = (
    f"{PARAMETER}.{name}" for name in (UNINITIALISED, SAME_START, DIFFERENT_COPIES, CUT_OFF)
)
LOADED, UNREAD, UNUSED_LAYER, ACTIVE_LAYERS, UNSET, UNREGISTERED = (
    f"module.{name}" for name in (PRETRAINED, UNREAD_SETTINGS, UNUSED_LAYERS, ACTIVE, UNSET_STATISTICS, RANDOM_WEIGHTS)
)
ACTIVE_DROPOUT, ACTIVE_NORMALISATION = "dropout", "normalisation"
"""Values of readings of layers that are active in a call without gradients."""
UNREAD_BY_OPTIMIZER, REPLACED_OPTIMIZER = f"optimizer.{UNREAD_SETTINGS}", f"optimizer.{REPLACED}"
REPLACED_WITHOUT_LOADER, USED_AGAIN = (f"optimizer.{name}" for name in (REPLACED_OVER_SAMPLES, REUSED))
STALE_COPY, SAME_SAMPLES = f"{MODEL}.{STALE}", f"{LOADER}.{WORKER_SAMPLES}"
UNSTEPPED_SCHEDULER, SCHEDULE_UNIT = f"{SCHEDULER}.{NEVER_STEPPED}", f"{SCHEDULER}.{UNIT}"
NO_AVERAGE, MISPLACED_DECAY = f"{MODEL}.{AVERAGE}", f"optimizer.{DECAY_OF_GROUPS}"
MERGED_HEADS, ONE_HEAD = f"{ATTENTION}.{HEADS}", f"module.{SHARED_HEAD}"
INFINITE_LOSS = f"{LOSS}.{NOT_FINITE}"
REDUCED_GRADIENT, REPLICAS = f"{GRADIENT}.{REDUCTION}", f"{PARAMETER}.{REPLICA}"
SELF_UPDATE = f"{MODEL}.{OWN_WEIGHTS}"
IDLE_AUTOCAST, KEPT_WEIGHTS = f"{AUTOCAST}.{IDLE_REGION}", f"{CHECKPOINT}.{KEPT}"
MERGED_STATE = f"{CHECKPOINT}.{MERGED}"
UNRESTORED, UNRESTORED_HERE = f"{CHECKPOINT}.{RESUMED}", f"{CHECKPOINT}.{RESUMED_HERE}"
RESTARTED_SCHEDULE = f"{CHECKPOINT}.{RESTARTED}"
CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
OF_SCORES = (
    "torch.nn.functional.binary_cross_entropy_with_logits",
    CROSS_ENTROPY,
    "torch.nn.functional.multilabel_soft_margin_loss",
)
"""Losses that squash their input by themselves."""

OF_LOGARITHMS = NLL_LOSS, KL_DIV = tuple(f"torch.nn.functional.{name}" for name in ("nll_loss", "kl_div"))
"""Losses of logarithms of probabilities."""

OF_CLASSES = CROSS_ENTROPY, NLL_LOSS
"""Losses whose input has a dimension of classes: the second, or that of an input without samples."""

SQUASHING, LOG_SOFTMAX, PRODUCT = "squashing", "log-softmax", "product"
"""What computed the input of a loss: a sigmoid or a softmax, a log-softmax, or a product of matrices."""

ELEMENTWISE = tuple(f"torch.nn.functional.{name}" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
"""Losses that broadcast their input and their target."""

NOT_ALL_ZERO = Property(IS_NOT_ZERO, GRAD, "in some step")
NOT_ZERO_FOR_LONG = Property(IS_NOT_ZERO, GRAD, "for each parameter")

USED_BEFORE_CLEARED = Property(ARE_USED, GRAD, "before they are cleared")
CLIPPED_LAST = Property(ARE_USED, GRAD, "as they were clipped")
SEEN_BY_CLIPPING = Property(ARE_USED, GRAD, "after clipping saw them")
AFTER_AVERAGING = Property(ARE_USED, GRAD, "after ranks averaged them")
AFTER_UNSCALING = Property(ARE_USED, GRAD, "after they are unscaled")
CLIPPED_IN_TIME = Property(ARE_USED, GRAD, "after they are clipped")
USED_ONCE = Property(ARE_USED, GRAD, "in one step of an optimizer")
WITH_A_RATE = Property(ARE_USED, GRAD, "with a learning rate above zero")
TO_DESCEND = Property(ARE_USED, GRAD, "with no negative learning rate")
WEIGHED_ONCE = Property(ARE_USED, GRAD, "with the weights of their micro-batches")
FROM_ALL_MICRO_BATCHES = Property(ARE_USED, GRAD, "with as many micro-batches as the divisor of their losses")
OF_MICRO_BATCHES = (WEIGHED_ONCE, FROM_ALL_MICRO_BATCHES)
FINITE_LOSS = Property(IS_FINITE, INFINITE_LOSS, "if an update uses its gradients")

FLOW_OF_GRADIENTS = (
    USED_BEFORE_CLEARED,
    CLIPPED_LAST,
    SEEN_BY_CLIPPING,
    AFTER_UNSCALING,
    AFTER_AVERAGING,
    CLIPPED_IN_TIME,
    WITH_A_RATE,
    TO_DESCEND,
    FINITE_LOSS,
)

IS_PART_OF_ITS_MODEL = Property(ARE_USED, GRAD, "to update the layers of a model")
WITH_GRADIENTS_ON = Property(ARE_USED, GRAD, "with gradients on")
IS_CALLED = Property(ARE_USED, UNUSED_LAYER, "by the model that makes it")
LEARNING_OF_LAYERS = (IS_PART_OF_ITS_MODEL, WITH_GRADIENTS_ON, IS_CALLED)

IN_TRAINING_MODE = Property(RUNS_IN, "torch.nn.Module.forward", "training mode")
IN_EVALUATION_MODE = Property(RUNS_IN, "torch.nn.Module.forward", "evaluation mode")
IN_MODE_AROUND = Property(RUNS_IN, "torch.nn.Module.forward", "the mode of the module around it")
SHUFFLES = Property(DIFFERS_BETWEEN_PASSES, "loader.order", "if the sampler shuffles")
SCORES = Property(ARGUMENT_VALUES, "input", "no sigmoid or softmax was applied")
LOG_PROBABILITIES = Property(ARGUMENT_VALUES, "input", "they are logarithms of probabilities")
OVER_CLASSES = Property(ARGUMENT_VALUES, "input", "a log-softmax ran over the classes")
KEEPS_CLASSES = Property(ARGUMENT_VALUES, "input", "no reshape mixes its classes")
SAME_SHAPE = Property(ARGUMENT_VALUES, "target", "it has the shape of the input")
KEEPS_STATE = Property(TAKES_OVER, "optimizer_state", "if it is built again")
RESTORES_POSITION = Property(TAKES_OVER, SCHEDULER, "from its checkpoint")
RESTORES_STATE = Property(TAKES_OVER, "optimizer_state", "from its checkpoint")

USED = Property(ARE_USED, GRAD, "by an update")
UNREAD_IS_READ = Property(IS_READ, "setting", "by torch")
KEPT_IS_LOADED = Property(IS_LOADED, KEPT_WEIGHTS, "as it was kept")
MERGED_IS_LOADED = Property(IS_LOADED, MERGED_STATE, "before the model is trained")
REACHED = Property(ARE_USED, GRAD, "and no detach cuts them off")
WRITTEN = Property(IS_WRITTEN, "parameter.data", "before it is used")
STATISTICS_SET = Property(IS_WRITTEN, UNSET, "before they are used")
REGISTERED = Property(IS_REGISTERED, UNREGISTERED, "in its module")
STARTS_DIFFER = Property(DIFFERS_FROM_OTHERS, EQUAL_LAYERS, "unless it is a copy")
EVALUATES_TRAINED = Property(IS_CURRENT, STALE_COPY, "in an evaluation")
AVERAGES_TRAINED = Property(AVERAGES, NO_AVERAGE, "the trained weights")
READS_ANOTHER = Property(AVERAGES, SELF_UPDATE, "the weights of another model")
IS_STEPPED = Property(HAS_TAKEN_EFFECT, UNSTEPPED_SCHEDULER, "by the end of the run")
COUNTS_ITS_STEPS = Property(COUNTS, SCHEDULE_UNIT, "the steps that its run makes")
CASTS = Property(HAS_TAKEN_EFFECT, IDLE_AUTOCAST, "on what computes the loss")
DECAYS_MATRICES = Property(IS_LOWER, "param_groups.weight_decay", "for vectors than for matrices")
DIVIDES_DATA = Property(DIFFERS_FROM_OTHERS, SAME_SAMPLES, "of another worker")
MERGES_HEADS = Property(MERGES, MERGED_HEADS, "within each position")
TWO_HEADS = Property(IS_SEPARATE, ONE_HEAD, "if it has a loss of its own")
ARE_ADDED = Property(ARE_USED, REDUCED_GRADIENT, "as a sum or a mean over ranks")
ONE_MODEL = Property(SAME_ON_RANKS, REPLICAS, "if ranks compute one model")
SAME_COPIES = Property(COPIES_AGREE, "parameter.data", "on all devices")
CLIPPED_SHARDS = Subject(f"{CLIPPING}.{SHARDS}", RANKS)
BY_ONE_NORM = Property(SCALES_BY_NORM, GRAD, "of all ranks")
REPORTED_ERRORS = {
    IDLE: USED,
    UNUSED: USED,
    UNREAD: UNREAD_IS_READ,
    UNREAD_BY_OPTIMIZER: UNREAD_IS_READ,
    KEPT_WEIGHTS: KEPT_IS_LOADED,
    MERGED_STATE: MERGED_IS_LOADED,
    CUT_OFF_PARAMETERS: REACHED,
    MEMORY: WRITTEN,
    UNSET: STATISTICS_SET,
    UNREGISTERED: REGISTERED,
    EQUAL_LAYERS: STARTS_DIFFER,
    STALE_COPY: EVALUATES_TRAINED,
    NO_AVERAGE: AVERAGES_TRAINED,
    SELF_UPDATE: READS_ANOTHER,
    UNSTEPPED_SCHEDULER: IS_STEPPED,
    SCHEDULE_UNIT: COUNTS_ITS_STEPS,
    SAME_SAMPLES: DIVIDES_DATA,
    IDLE_AUTOCAST: CASTS,
    MERGED_HEADS: MERGES_HEADS,
    ONE_HEAD: TWO_HEADS,
    COPIES: SAME_COPIES,
    MISPLACED_DECAY: DECAYS_MATRICES,
    REPLACED_WITHOUT_LOADER: KEEPS_STATE,
    USED_AGAIN: USED_ONCE,
    UNRESTORED: RESTORES_STATE,
    RESTARTED_SCHEDULE: RESTORES_POSITION,
    REDUCED_GRADIENT: ARE_ADDED,
}
"""The property that each of these readings violates."""

FIRST = 10
"""The first steps. An initialisation with zeros (adapters, a last layer) ends after one or two; a run that learns
nothing for ten steps is suspicious."""

LONG = 200
"""Steps: rare tokens, experts and branches appear in fewer as a rule."""


_SENTENCES = {
    NOT_ALL_ZERO: f"in one of the first {FIRST} steps at least, some gradient is not zero",
    NOT_ZERO_FOR_LONG: f"a gradient that is computed is not zero in each of {LONG} steps in a row",
    WRITTEN: "a parameter whose memory to_empty() allocated is initialised or loaded before the model is called",
    STATISTICS_SET: "training normalises with statistics of batches, or with some that were loaded",
    SAME_COPIES: "all devices that hold a copy of a replicated array hold the same values",
    IN_EVALUATION_MODE: "an evaluation calls the trained model in evaluation mode",
    IN_TRAINING_MODE: "a model that an optimizer updates runs in training mode",
    UNREAD_IS_READ: "a setting of a module, a parameter or an optimizer is written where torch reads it",
    REACHED: "parameters that an optimizer holds get a gradient if a loss is computed from what their layer returns",
    KEPT_IS_LOADED: "a state that a program loads is not the memory of the same model, as state_dict() returned it",
    MERGED_IS_LOADED: "a state of a model that takes weights of another model is loaded before the model is trained",
    SHUFFLES: "a sampler that shuffles draws another order for each pass over the data",
    SAME_SHAPE: "a loss compares each prediction with one target",
    LOG_PROBABILITIES: "a loss of log-probabilities gets no scores of a layer, and no probabilities",
    OVER_CLASSES: "the log-softmax of a loss of log-probabilities runs over its classes, or over those of the target",
    KEEPS_CLASSES: "between a layer and a loss, no reshape mixes the outputs of the layer, which are the classes",
    SCORES: "in the input of a loss with logits, no sigmoid or softmax was applied",
    IN_MODE_AROUND: "a layer that a module makes in its forward is in evaluation mode if the module is",
    USED_BEFORE_CLEARED: "a gradient of a parameter that an optimizer holds is used by an update before it is cleared",
    CLIPPED_LAST: "no backward adds to a gradient between clipping and the update",
    SEEN_BY_CLIPPING: "clipping sees the gradients that the next update uses",
    IS_PART_OF_ITS_MODEL: "a new layer that gets gradients in training is updated with the model that calls it",
    IS_CALLED: "a layer with parameters that a module makes is called",
    AFTER_AVERAGING: "ranks of a data-parallel model average gradients before an update uses them",
    CLIPPED_IN_TIME: "gradients are clipped before the update that uses them",
    USED_ONCE: "an optimizer steps once with the gradients of a backward",
    TO_DESCEND: "the learning rate of an optimizer is not negative in two updates in a row",
    WITH_A_RATE: f"the learning rate of an optimizer is above zero in one of {FIRST} updates in a row",
    WEIGHED_ONCE: "losses that are accumulated are divided by the number of micro-batches once",
    FROM_ALL_MICRO_BATCHES: "the first update accumulates as many micro-batches as the number that divides each loss",
    AFTER_UNSCALING: "gradients of a scaled loss are unscaled before they are clipped or update parameters",
    REGISTERED: "random weights between the layers of a model are parameters or buffers of it",
    STARTS_DIFFER: "two layers of a new model start with different random numbers, unless one is a copy",
    EVALUATES_TRAINED: "an evaluation calls the trained model, or one that follows it",
    AVERAGES_TRAINED: "a copy that follows the trained weights takes a small share of them in each update, or all",
    ONE_MODEL: "ranks that compute one model together use the same gradient of a parameter that each of them holds",
    ARE_ADDED: "ranks combine their parts of a gradient by a sum or a mean",
    READS_ANOTHER: "an update of a copy of a model reads the weights of another model",
    IS_STEPPED: "a run of several passes over the data steps the scheduler that it builds for an optimizer",
    COUNTS_ITS_STEPS: "a schedule that is made for its run is stepped in the unit of its length",
    DIVIDES_DATA: "the workers of a data loader read different samples",
    DECAYS_MATRICES: "groups that separate biases and normalization weights from matrices decay them less",
    MERGES_HEADS: "attention that transposes its queries transposes its result before a reshape merges the heads",
    TWO_HEADS: "two predictions from one input that have a loss each, or of which one is taken, are of two modules",
    FINITE_LOSS: "a loss whose gradients an update uses is a finite number",
    CASTS: "an autocast region that computes a loss casts something that the loss is computed from",
    KEEPS_STATE: "an optimizer that is built again in the loop over the data keeps the state of the one before it",
    RESTORES_STATE: "an optimizer that goes on from a checkpoint restores the state that the checkpoint holds of it",
    RESTORES_POSITION: "a scheduler of a restored optimizer goes on from where the checkpoint left off",
    BY_ONE_NORM: "ranks that hold parts of a gradient clip it by the norm of the whole gradient",
    WITH_GRADIENTS_ON: "a module whose new parameters an optimizer holds is called with gradients on",
}
"""Sentences of rules with a property of their own. The rules with the property USED differ by their subject."""


def sentence_of(subject: Subject, prop: Property) -> str:
    """One of these rules as a sentence."""
    if prop in _SENTENCES:
        return _SENTENCES[prop]
    if subject.api == IDLE:
        return "an optimizer whose parameters get gradients in training is stepped"
    return "parameters that get gradients in training are updated"
