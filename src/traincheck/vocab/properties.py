"""The verbs of properties: what each one asserts, and how the other stages treat a rule that uses it.

Books store verbs, so their text never changes. Declare a new verb of TrainCheck's own relations here. A package that
adds a relation may use further verbs: `traits_of` treats them as plain statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from traincheck.vocab.bands import Band, band_of_text, text_of
from traincheck.vocab.occasion import Property

CONTAINS_CALL, CONTAINS_CHANGE = "contains call", "contains change"
PRECEDED_BY = "preceded by"

ARGUMENT_VALUES, ARGUMENT_SIZE, ARGUMENT_IS_SCALED = "argument values", "argument size", "argument is scaled"
ARGUMENT_AGREES, FILLS_MEMORY = "argument agrees", "fills"
COMPARES_CALLS, WORKER_STATES, CALLS_ON_RANKS, MESSAGES = "arguments", "states of workers", "calls on ranks", "messages"

RETURNS, RETURNS_DTYPE, RETURNS_SIZE = "returns", "returns dtype", "returns size"
RETURNS_LENGTH, RETURNS_WIDTH, RETURNS_MORE = "returns length", "returns width", "returns more"
GIVES_BACK, LEAVES_ARGUMENT, LEAVES_NORM = "gives back", "leaves argument", "leaves norm"

HAS, HAS_ONLY = "has", "has only"
TREATS_SO, TREATS_ONLY_SO = "treats so", "treats only so"
MODULE_IS, MODULE_IS_ONLY = "module is", "module is only"
FOLLOWS, FOLLOWS_ONLY = "follows", "follows only"
BATCH_IS, BATCH_IS_ONLY = "batch is", "batch is only"
KEY_IS, KEY_IS_ONLY = "key is", "key is only"
BATCH_HAS_FORM, BATCH_HAS_ONLY_FORMS = "batch has form", "batch has only forms"
VALUES_ARE = "values are"
COPY_IS, COPY_IS_ONLY = "copy is", "copy is only"
CHECKPOINT_HOLDS, CHECKPOINT_HOLDS_ONLY = "checkpoint holds", "checkpoint holds only"
EVALUATION_CHANGES, EVALUATION_CHANGES_ONLY = "evaluation changes", "evaluation changes only"
PASS_ENDS, PASS_ENDS_ONLY = "pass ends", "pass ends only"
TAKES_COURSE, TAKES_ONLY_COURSES = "takes course", "takes only courses"
USES_NUMBER, USES_ONLY_NUMBERS = "uses number", "uses only numbers"
LIES_AT, LIES_IN_BAND = "lies at", "lies in band"
STAYS_AT, STAYS_NEAR_BAND = "stays at", "stays near band"
IS, STAYS, KEEPS, RESTORES, TAKES_OVER = "is", "stays", "keeps", "restores", "takes over"
SAVED_EQUALS_LIVE, LIVE_EQUALS_LOADED = "saved equals live", "live equals loaded"
IS_SAVED, IS_LOADED, TAKES_SOMETHING = "is saved", "is loaded", "takes something"
AGREES_WITH, DOES_NOT_HALVE = "agrees with", "does not halve"
HAS_TAKEN_EFFECT, IS_AS_BUILT, IS_UPDATED_BEFORE_USE = (
    "has taken effect",
    "is as built",
    "is updated before it is used",
)
REPEATS, IS_VERIFIED = "repeats", "is verified"
SAME_ON_RANKS, DIFFERS_ON_RANKS = "same on ranks", "differs on ranks"
SCALES_BY_NORM = "scales by norm"

MOVES, IS_CLEARED_BEFORE_USE, LEARNS_FROM = "moves", "is cleared before its next use", "learns from"
GROWS_BY_ONE, KEEPS_INTERVAL = "grows by one per", "keeps its rhythm"
REACHES, DIFFERS_BETWEEN_PASSES, STAYS_WITHIN = "reaches", "differs between passes", "stays within"
COVERS_A_PASS, IS_NOT_ZERO, ARE_USED, IS_WRITTEN = "covers a pass", "is not zero", "are used", "is written"
COPIES_AGREE, RUNS_IN, IS_READ = "copies agree", "runs in", "is read"
DIFFERS_FROM_OTHERS, IS_CURRENT, AVERAGES, IS_LOWER = "differs from others", "is current", "averages", "is lower"
MERGES, IS_SEPARATE, IS_FINITE = "merges", "is separate", "is finite"
IS_REGISTERED = "is registered"
COUNTS = "counts"

EQUAL, DISTINCT = "all equal", "all distinct"
"""Details of a comparison of several calls: every value is the same, or no two are."""

THEN = "then "
"""Start of a detail that orders two calls: the object comes first, the API in the rest of the detail second."""

CHANGES, DOES_NOT_CHANGE, IS_CLEARED, IS_FILLED = "changes", "does not change", "is cleared", "is filled"
PAST_TENSE = {
    CHANGES: "changed",
    DOES_NOT_CHANGE: "did not change",
    IS_CLEARED: "was cleared",
    IS_FILLED: "was filled",
}
"""Details that name a transition of a variable, with their past tense."""


class Evidence(Enum):
    """The values of the call that a report shows with a violation, in addition to the parameters around it."""

    NONE = "none"
    RESULT = "result"
    CLIPPING = "clipping"


@dataclass(frozen=True, slots=True)
class VerbTraits:
    """How the other stages treat a rule with this verb.

    `expects_call`: a violation means that nobody made the call in `object`. `expects_difference`: the compared values
    are meant to differ, so a violation means that they are the same. `evidence`: what a report shows of the call.
    `element_of`: the detail is one element of a set. Inference learns the set of a program, as a rule with this verb.
    The rule fails on an occasion with another element. In a closed world, it fails without one that every occasion had.
    A set with more than `most_elements` (unless that is 0) makes no rule, because its values follow the progress.
    `least_margin`: the elements are numbers, and the set is a band, which is wider than good runs by this many octaves
    at least (see bands.py). For other sets it is 0.
    """

    meaning: str
    expects_call: bool = False
    expects_difference: bool = False
    evidence: Evidence = Evidence.NONE
    element_of: str = ""
    most_elements: int = 0
    least_margin: int = 0


VERBS: dict[str, VerbTraits] = {
    CONTAINS_CALL: VerbTraits("a call of the subject makes a call of the object", expects_call=True),
    CONTAINS_CHANGE: VerbTraits("a variable changes in a call of the subject"),
    PRECEDED_BY: VerbTraits("the object occurs between two calls of the subject", expects_call=True),
    ARGUMENT_VALUES: VerbTraits("the values of a tensor argument have a form, such as rows that sum to one"),
    ARGUMENT_SIZE: VerbTraits("a tensor argument has more than one element along the dimension"),
    ARGUMENT_IS_SCALED: VerbTraits("a gradient scaler scaled the loss that a backward starts from"),
    ARGUMENT_AGREES: VerbTraits("an argument follows the training mode of the module around the call"),
    FILLS_MEMORY: VerbTraits("each call fills other memory with random numbers"),
    COMPARES_CALLS: VerbTraits("several calls have equal or distinct arguments and results"),
    WORKER_STATES: VerbTraits("loader workers have equal, distinct or renewed random states"),
    CALLS_ON_RANKS: VerbTraits("ranks make the same calls"),
    MESSAGES: VerbTraits("a message fits the receiver and arrives as it was sent"),
    RETURNS: VerbTraits("the result has a quality, such as finite values"),
    RETURNS_DTYPE: VerbTraits("the result has the dtype of autocast, an input or an argument"),
    RETURNS_SIZE: VerbTraits("the result has the batch or the shape of an input", evidence=Evidence.RESULT),
    RETURNS_LENGTH: VerbTraits("an argument bounds the length of the result", evidence=Evidence.RESULT),
    RETURNS_WIDTH: VerbTraits("an argument bounds the last dimension of the result", evidence=Evidence.RESULT),
    RETURNS_MORE: VerbTraits("an argument bounds what a call adds to a sequence", evidence=Evidence.RESULT),
    GIVES_BACK: VerbTraits("a call of this kind returns what the kind is for", evidence=Evidence.RESULT),
    LEAVES_ARGUMENT: VerbTraits("the call leaves an argument unchanged, or changes it"),
    LEAVES_NORM: VerbTraits(
        "clipping bounds the norm and scales all gradients by one factor", evidence=Evidence.CLIPPING
    ),
    HAS: VerbTraits("a module has this operation", element_of=HAS_ONLY),
    HAS_ONLY: VerbTraits("a module has no operations but these"),
    USES_NUMBER: VerbTraits("an operation has this number in the code", element_of=USES_ONLY_NUMBERS, most_elements=4),
    USES_ONLY_NUMBERS: VerbTraits("an operation has no numbers in the code but these"),
    TREATS_SO: VerbTraits("a program treats a parameter in this way", element_of=TREATS_ONLY_SO),
    TREATS_ONLY_SO: VerbTraits("a program treats its parameters in no other ways"),
    MODULE_IS: VerbTraits("a module has this class, buffer or attribute", element_of=MODULE_IS_ONLY),
    MODULE_IS_ONLY: VerbTraits("modules have no other classes and attributes"),
    FOLLOWS: VerbTraits("one call follows another", element_of=FOLLOWS_ONLY),
    FOLLOWS_ONLY: VerbTraits("calls follow each other in no other order"),
    TAKES_COURSE: VerbTraits("the learning rate does this at an update", element_of=TAKES_ONLY_COURSES),
    TAKES_ONLY_COURSES: VerbTraits("the learning rate does nothing else at an update"),
    BATCH_IS: VerbTraits("a batch is new, or one that came before", element_of=BATCH_IS_ONLY),
    BATCH_IS_ONLY: VerbTraits("batches are new or repeat in no other ways"),
    KEY_IS: VerbTraits("a random key is new, or was used before", element_of=KEY_IS_ONLY),
    KEY_IS_ONLY: VerbTraits("random keys are new or repeat in no other ways"),
    BATCH_HAS_FORM: VerbTraits("a model is called with such an input", element_of=BATCH_HAS_ONLY_FORMS),
    BATCH_HAS_ONLY_FORMS: VerbTraits("a model is called with no other inputs"),
    VALUES_ARE: VerbTraits("the values of a function's tensor have a form, or relate to another tensor"),
    COPY_IS: VerbTraits("a copy of a model has such weights", element_of=COPY_IS_ONLY),
    COPY_IS_ONLY: VerbTraits("copies of a model have no other weights"),
    CHECKPOINT_HOLDS: VerbTraits("a checkpoint holds this entry", element_of=CHECKPOINT_HOLDS_ONLY),
    CHECKPOINT_HOLDS_ONLY: VerbTraits("checkpoints hold no other entries"),
    EVALUATION_CHANGES: VerbTraits("an evaluation changes this", element_of=EVALUATION_CHANGES_ONLY),
    EVALUATION_CHANGES_ONLY: VerbTraits("evaluations change nothing else"),
    PASS_ENDS: VerbTraits("a pass over the data ends in this way", element_of=PASS_ENDS_ONLY),
    PASS_ENDS_ONLY: VerbTraits("passes over the data end in no other way"),
    LIES_AT: VerbTraits("a number has this size", element_of=LIES_IN_BAND, least_margin=2),
    LIES_IN_BAND: VerbTraits("a number is about as large as in good runs"),
    STAYS_AT: VerbTraits("a number has this size for several updates", element_of=STAYS_NEAR_BAND, least_margin=6),
    STAYS_NEAR_BAND: VerbTraits("a number does not stay far from good runs"),
    IS: VerbTraits("a setting of the program has this value"),
    STAYS: VerbTraits("a value is the same at the next update"),
    KEEPS: VerbTraits("a parameter group has all entries that it had"),
    RESTORES: VerbTraits("a module has the training flag that it had before an evaluation"),
    TAKES_OVER: VerbTraits("a restarted optimizer has the settings of the one it continues"),
    SAVED_EQUALS_LIVE: VerbTraits("a saved value equals the live one"),
    LIVE_EQUALS_LOADED: VerbTraits("a live value equals the loaded one after a load"),
    IS_SAVED: VerbTraits("a checkpoint contains every variable of the model"),
    IS_LOADED: VerbTraits("a load restores every variable of the model"),
    TAKES_SOMETHING: VerbTraits("a load finds at least one variable of the model"),
    AGREES_WITH: VerbTraits("an optimizer uses the learning rate that its scheduler set"),
    DOES_NOT_HALVE: VerbTraits("the learning rate does not fall by more than half in the first steps"),
    HAS_TAKEN_EFFECT: VerbTraits(
        "a custom train() method ran before training, autocast casts something, or a scheduler steps"
    ),
    IS_AS_BUILT: VerbTraits("the attributes of a module are those that its constructor set"),
    IS_UPDATED_BEFORE_USE: VerbTraits("training updates a random buffer before an evaluation uses it"),
    REPEATS: VerbTraits("a step that is executed again gives the same bits"),
    IS_VERIFIED: VerbTraits("a second computation of a part of the step gives what mathematics says"),
    SAME_ON_RANKS: VerbTraits("ranks hold the same value"),
    DIFFERS_ON_RANKS: VerbTraits("each rank has its own value", expects_difference=True),
    SCALES_BY_NORM: VerbTraits("clipping scales all shards of a gradient by the norm of the whole gradient"),
    MOVES: VerbTraits("a training step changes a parameter that has a gradient"),
    IS_CLEARED_BEFORE_USE: VerbTraits("a gradient is cleared between two updates that use it"),
    LEARNS_FROM: VerbTraits("a backward runs between a training forward and the update"),
    GROWS_BY_ONE: VerbTraits("each call increases a counter by one"),
    KEEPS_INTERVAL: VerbTraits("a variable changes every k steps, as before"),
    REACHES: VerbTraits("a total equals what was announced"),
    DIFFERS_BETWEEN_PASSES: VerbTraits("each pass over a loader has another order"),
    STAYS_WITHIN: VerbTraits("a counter does not exceed what was announced"),
    COVERS_A_PASS: VerbTraits("a schedule that is stepped per batch is as long as one pass over the data"),
    IS_NOT_ZERO: VerbTraits("gradients are not always zero"),
    ARE_USED: VerbTraits("an update uses the gradients that a run computes"),
    IS_WRITTEN: VerbTraits("memory is written before a model uses it"),
    COPIES_AGREE: VerbTraits("all devices hold the same copy of a value"),
    IS_READ: VerbTraits("a setting that a program writes has an effect"),
    DIFFERS_FROM_OTHERS: VerbTraits("a layer of a new model has random numbers of its own", expects_difference=True),
    IS_CURRENT: VerbTraits("a model has the weights of the training"),
    AVERAGES: VerbTraits("an average of weights follows them slowly"),
    IS_LOWER: VerbTraits("a setting is lower for some parameters than for others"),
    MERGES: VerbTraits("a reshape merges the dimensions that belong together"),
    COUNTS: VerbTraits("the length of a schedule is in the unit of its steps"),
    IS_SEPARATE: VerbTraits("two names that a program uses for two modules are two modules"),
    IS_FINITE: VerbTraits("a value is a finite number"),
    IS_REGISTERED: VerbTraits("a tensor that a model computes with is a parameter or a buffer"),
    RUNS_IN: VerbTraits("a model that is trained is in training mode"),
}
"""Every verb of TrainCheck's own relations."""

_PLAIN = VerbTraits("a statement of a relation from another package")


def traits_of(prop: Property) -> VerbTraits:
    """How to treat a property; the defaults for a verb that is not declared here."""
    return VERBS.get(prop.verb, _PLAIN)


def expects_difference(prop: Property) -> bool:
    """Whether a violation means that values are the same although they should differ."""
    return traits_of(prop).expects_difference or prop.detail == DISTINCT


_ELEMENT_VERBS = {traits.element_of: verb for verb, traits in VERBS.items() if traits.element_of}

SOMETIMES = "? "
"""Start of an element that not every occasion has."""


class ElementSet(NamedTuple):
    """The elements that a rule about a set allows, and those that it requires."""

    allowed: frozenset[Property]
    required: frozenset[Property]


def elements_of(prop: Property) -> ElementSet | None:
    """The elements of a rule about a set; None for any other property."""
    return _elements(prop) if prop.verb in _ELEMENT_VERBS else None


def band_of(prop: Property) -> Band | None:
    """The band of a rule about a number; None for any other property."""
    verb = _ELEMENT_VERBS.get(prop.verb)
    return band_of_text(prop.detail) if verb is not None and VERBS[verb].least_margin else None


@lru_cache(1_000)
def _elements(prop: Property) -> ElementSet:
    verb = _ELEMENT_VERBS[prop.verb]
    band = band_of(prop)
    if band is not None:
        allowed = frozenset(Property(verb, prop.object, text_of(octave)) for octave in band.allowed)
        return ElementSet(allowed, frozenset())
    lines = prop.detail.split("\n")
    allowed = frozenset(Property(verb, prop.object, line.removeprefix(SOMETIMES)) for line in lines)
    required = frozenset(Property(verb, prop.object, line) for line in lines if not line.startswith(SOMETIMES))
    return ElementSet(allowed, required)


def set_of(elements: ElementSet) -> Property:
    """The property of a rule about these elements, which are of one verb and object."""
    several = sorted(elements.allowed)
    lines = [prop.detail if prop in elements.required else SOMETIMES + prop.detail for prop in several]
    return Property(traits_of(several[0]).element_of, several[0].object, "\n".join(lines))
