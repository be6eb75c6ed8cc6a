"""Follows training steps and stages, and cuts the run into windows at their boundaries.

Note [One window per step]
A training step is what a person would count: the work up to and including one update of the parameters. Its end is
known only later (the generator's step may follow the discriminator's), so the tracker cuts in one of two ways:

* *at once*, when something new begins (a batch is fetched, an outermost module is called, a backward starts) after
  every active optimizer of the program has stepped in this window;
* *backdated*, when an optimizer steps that has already stepped in this window: the new step began with the first new
  activity after the last update.

The work of a loop right after an update (scheduler, zero_grad, logging) thereby stays with the step before it. Whether
there is another batch is known when its fetch ends: a fetch that finds the loader exhausted belongs to the activity
before it, and the activity after it is new.

An update that raises does not count: the step goes on until an update succeeds. An optimizer that is built after
every other optimizer has stepped begins a new phase, so it closes the step as well; otherwise the step would wait for
it. An optimizer that is built before the first backward ends the set-up: models that were called until then (for their
shapes, targets or lazy parameters) were not trained by it.

A process that only evaluates, such as a rollout worker, makes no steps. Its windows end when it loads other weights.

An outermost forward in evaluation mode without gradients makes an evaluation window. A forward in evaluation mode
*with* gradients is evaluation that forgot no_grad or training in the wrong mode: the backward that follows decides.

A program without an optimizer may update its parameters itself (manual_updates.py). TrainCheck sees such an update when
the next activity begins, and treats it like the update of an optimizer with the name of the model.

A rank whose data has ended answers the other ranks when it leaves its `Join`, as long as they train. Their steps count
for this rank as well, so that ranks make steps of one number together. The activity after the `Join` is new on every
rank.

The tracker reports where the next window may begin as soon as it sees the place (`on_opening`), and again where that
was too early: if a cut is backdated, the window has only the events from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from traincheck.vocab.events import END, EVAL, SETUP, TRAIN

ACTIVE_STEPS = 20
"""Steps do not wait for an optimizer that has not stepped for this many steps. No alternation in use is longer, and
waiting for an optimizer of an earlier phase would delay every cut to the next update."""

UNDECIDED = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a window with this step and stage: it ends before position `seq`.

    `opens` is the stage of the next window, where it is known already.
    """

    seq: int
    step: int
    stage: str
    opens: str = UNDECIDED


class StepTracker:
    """Counts training steps and cuts windows, from the activities that sources report.

    `step` is the step under way: 0 until the first training activity, then 1, 2, ... Optimizers are identified by name.
    """

    def __init__(
        self,
        on_cut: Callable[[Cut], None],
        on_opening: Callable[[int], None] = lambda seq: None,
        on_change: Callable[[], None] = lambda: None,
        on_update: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_cut = on_cut
        self._on_opening = on_opening
        self._on_change = on_change  # `awaits_forward` may have become True
        self._on_update = on_update  # an optimizer has updated parameters, and `awaits_forward` may have become True
        self.last_steps: dict[str, int] = {}  # optimizer -> step of its last update (or of its construction)
        self._manual_models: set[str] = set()  # models that the program updates without an optimizer
        self.optimizers: set[str] = set()  # optimizers that exist
        self._check: Callable[[bool], object] | None = None  # see `check_before_activity`
        self.forwards, self.backwards = 0, 0  # calls of outermost modules, and backwards
        self.optimizers_built = 0
        self.passes_ended = 0  # loaders that were found exhausted, or left after their last batch
        self.fetches = 0  # batches that loaders returned, and ends of their passes
        self.updates_made = 0  # updates, and steps that the program has named
        self._stepped: set[str] = set()  # optimizers that have stepped in this window
        self.updates: list[Callable[[], bool]] = []  # for each update under way, whether it still runs
        self._next_start = -1  # first new activity after the last update
        self._fetch_start = -1  # first batch fetch (or end of a loader) since the last outermost forward
        self._open_fetch = -1  # batch fetch under way (the outermost)
        self._undecided_forward = -1  # first forward of this window that may be evaluation or training
        self._stage = SETUP
        self._steps_named = False  # the program says where steps end
        self._stage_named = False  # the program says which stage this is
        self.step = 0

    @property
    def updating(self) -> bool:
        """Whether an update is under way."""
        return bool(self.updates)

    @property
    def fetching(self) -> bool:
        """Whether a batch is being fetched."""
        return self._open_fetch >= 0

    @property
    def window_step(self) -> int:
        """The step of the open window; of an undecided window, its step if it turns out to be training."""
        return self.step if self._stage == TRAIN else self.step + 1

    @property
    def setting_up(self) -> bool:
        """Whether the program has neither trained nor evaluated yet."""
        return self._stage == SETUP

    @property
    def evaluating(self) -> bool:
        """Whether the open window is known to be an evaluation."""
        return self._stage == EVAL

    @property
    def awaits_forward(self) -> bool:
        """Whether the next call of an outermost module may change the stage; within a step it does not."""
        return self._stage == UNDECIDED or bool(self._stepped) or self._check is not None

    @property
    def between_steps(self) -> bool:
        """Whether an optimizer has updated the parameters, and nothing new has begun."""
        return bool(self._stepped) and self._next_start < 0 and not self.updates

    @property
    def undecided(self) -> bool:
        """Whether the stage of the open window is not known yet."""
        return self._stage == UNDECIDED

    def check_before_activity(self, check: Callable[[bool], object] | None) -> None:
        """Call `check` before each new activity, until another check or None takes its place (see manual_updates.py).

        Its argument is whether the activity is no fetch of a batch: an update may follow after a fetch.
        """
        self._check = check
        if check is not None:
            self._on_change()

    def optimizer_built(self, name: str, seq: int) -> None:
        """An optimizer was built; steps wait for it."""
        self.optimizers_built += 1
        if self._check is not None:
            self._check(True)
        if self._all_stepped():
            self._close(self._next_start if self._next_start >= 0 else seq, TRAIN)
        elif not self.updates_made and not self.backwards and not self._steps_named and not self._stage_named:
            self._return_to_setup(seq)
        self.last_steps[name] = self.step
        self.optimizers.add(name)
        while self._manual_models:  # from now on only optimizers make steps
            self.last_steps.pop(self._manual_models.pop(), None)

    def optimizer_gone(self, name: str) -> None:
        """An optimizer was deleted; steps no longer wait for it."""
        self.last_steps.pop(name, None)
        self.optimizers.discard(name)

    def rare_event(self, seq: int) -> None:
        """A rare event begins between two steps, and belongs to the next window. So that window has all of it."""
        self._activity_begins(seq)

    def fetch_begins(self, seq: int) -> None:
        """A batch is about to be fetched; computations of the data set belong to the fetch."""
        if self._open_fetch < 0 and not (self.updates and self._is_updating()):
            if self._check is not None:
                self._check(False)
            self._open_fetch = seq
            if self._stepped and self._next_start < 0:
                self._on_opening(seq)

    def fetch_ends(self, began: int, exhausted_at: int = -1) -> None:
        """The fetch that began at `began` returned a batch, or found none (at `exhausted_at`).

        Does nothing for a fetch inside an update (another thread reads the loader) or inside another fetch.
        """
        if self._open_fetch == began:
            self._open_fetch = -1
            seq = began if exhausted_at < 0 else exhausted_at
            self.fetches += 1
            self.passes_ended += exhausted_at >= 0
            if self._stepped:
                self._activity_begins(seq)
            if self._fetch_start < 0:
                self._fetch_start = seq

    def fetch_failed(self, began: int) -> bool:
        """The fetch that began at `began` raised; whether it was the outermost fetch."""
        if self._open_fetch != began:
            return False
        self._open_fetch = -1
        return True

    def fetch_abandoned(self) -> None:
        """Nothing will report the end of the fetch under way."""
        self._open_fetch = -1

    def forward(self, seq: int, training: bool, grad: bool) -> None:
        """An outermost module is about to be called."""
        self.forwards += 1
        if self.updates and self._is_updating():
            return
        if self._check is not None:
            self._check(True)
        seq = self._open_fetch if self._open_fetch >= 0 else seq
        if self._stepped:
            self._activity_begins(seq)
        begin = self._fetch_start if self._fetch_start >= 0 else seq
        self._fetch_start = -1
        if self._stage_named:
            return
        if grad and training:
            if self._stage != TRAIN:
                self._train_from(begin)
        elif grad:
            self._undecided_forward = begin if self._undecided_forward < 0 else self._undecided_forward
        elif not training:
            self._evaluate_from(begin)

    def computation_begins(self, seq: int) -> None:
        """A compiled function is about to run, with unknown content."""
        if not self._is_updating():
            if self._check is not None:
                self._check(True)
            self._activity_begins(self._activity_start(seq))

    def backward(self, seq: int) -> None:
        """A backward is about to run."""
        self.backwards += 1
        if self.updates and self._is_updating():
            return
        if self._check is not None:
            self._check(True)
        seq = self._open_fetch if self._open_fetch >= 0 else seq
        if self._stepped:
            self._activity_begins(seq)
        if self._stage in (SETUP, EVAL):
            self._train_from(self._undecided_forward if self._undecided_forward >= 0 else seq)
        else:
            self._undecided_forward = -1
            if self._stage != TRAIN:
                self._train_from(seq)

    def update_begins(self, name: str, seq: int, runs: Callable[[], bool] = lambda: True) -> None:
        """The optimizer `name` is about to update parameters; `runs` returns False once the update has raised."""
        inside = bool(self.updates) and self._is_updating()
        self.updates.append(runs)
        self.optimizers.add(name)
        if inside:  # part of the step of another optimizer, for which steps wait
            self.last_steps.pop(name, None)
            return
        if name in self._stepped and not self._steps_named:
            self._close(self._next_start if self._next_start >= 0 else seq, TRAIN)
        if self._stage != TRAIN:
            self._train_from(self._fetch_start if self._fetch_start >= 0 else seq)

    def update_ends(self, name: str) -> None:
        """The update ended (or a gradient scaler skipped it)."""
        if len(self.updates) == 1:  # the update itself; no update is around it
            self.updates.clear()
        if not (self.updates and self.update_failed()):
            self.updates_made += 1
            self._stepped.add(name)
            self.last_steps[name] = self.step
            self._next_start = self._fetch_start = self._open_fetch = -1
            self._on_update()

    def has_only(self, optimizer: str) -> bool:
        """Whether each update of `optimizer` is a step: no other optimizer is in use, and nothing else ends steps."""
        return (
            self.last_steps.keys() == {optimizer}
            and self._stage == TRAIN
            and self._check is None
            and not (self._steps_named or self._stage_named or self._manual_models)
            and len(self.updates) <= 1
        )

    def manual_update(self, names: Collection[str], seq: int) -> None:
        """The program has updated the parameters of the models `names` without an optimizer, at `seq`."""
        if not self._steps_named and not self._stepped.isdisjoint(names):
            self._close(self._next_start if self._next_start >= 0 else seq, TRAIN)
        self._train_from(self._fetch_start if self._fetch_start >= 0 else seq)
        self.updates_made += 1
        self._manual_models.update(names)
        self._stepped.update(names)
        self.last_steps.update(dict.fromkeys(names, self.step))
        self._next_start = self._fetch_start = self._open_fetch = -1
        self._on_change()

    def update_failed(self) -> bool:
        """The update raised; whether an update around it is still under way."""
        if self._is_updating():
            with suppress(IndexError):  # another thread was faster
                self.updates.pop()
        return bool(self.updates)

    def explicit_step(self, seq: int) -> None:
        """The program says that a step ends here; from now on only such calls end steps."""
        if self._check is not None:
            self._check(True)
        self._steps_named = True
        self.updates_made += 1
        self._train_from(seq)
        self._close(seq, TRAIN)

    def join_ends(self, seq: int, missed: int) -> None:
        """A `Join` of uneven data ended on all ranks (at `seq`); others made `missed` steps without this rank."""
        self._activity_begins(seq)
        if self._stage == TRAIN or self._is_updating():
            return  # within a step, which keeps its number
        if missed and self._stage in (SETUP, EVAL):
            self._close(seq, self._stage)
        self.step += missed
        self.last_steps = {name: step + missed for name, step in self.last_steps.items()}
        self._on_change()

    def stage_begins(self, stage: str, seq: int) -> None:
        """The program names its stage; until `stage_ends` the tracker does not infer another stage."""
        if self._check is not None:
            self._check(True)
        if stage == EVAL:
            if self._stage != UNDECIDED:
                self._close(seq, self._stage, EVAL)
            self._stage = EVAL
        else:
            self._train_from(seq)
        self._stage_named = True

    def stage_ends(self, seq: int) -> None:
        """The stage that the program named is over."""
        self._stage_named = False
        if self._stage == EVAL:
            self._close(seq, EVAL)

    def load_begins(self, seq: int) -> None:
        """A model is about to get other weights. In a process that only evaluates, a new evaluation begins."""
        if self._stage == EVAL and not self._stage_named and not self.updates_made and not self.optimizers:
            self._close(seq, EVAL, EVAL)
            self._stage = EVAL

    @property
    def completed(self) -> int:
        """The completed training steps; the step under way counts once it has updated parameters."""
        return self.step - 1 if self._stage == TRAIN and not self._stepped else self.step

    def counts(self, at_least: int) -> dict[str, Any]:
        """Fields of a `ProcessNote`: steps (`at_least` this many), updates, forwards and backwards."""
        steps = max(at_least, self.completed)
        return {"steps": steps, "updates": self.updates_made, "forwards": self.forwards, "backwards": self.backwards}

    def finish(self, began: int, seq: int) -> None:
        """The run ends: close the open window where the end began, then (at `seq`) the window of the end."""
        if self._stage == TRAIN and self._stepped:
            self._close(self._next_start if self._next_start >= 0 else began, TRAIN, END)
        elif self._fetch_start >= 0 and (self._stage == EVAL or self._undecided_forward >= 0):
            self._close(self._fetch_start, EVAL, END)  # as where training follows
        stage = self._stage or (EVAL if self._undecided_forward >= 0 else END)
        self._close(seq, stage, END)

    # -- cutting -------------------------------------------------------------------------------------------------

    def _activity_start(self, seq: int) -> int:
        """Where an activity reported at `seq` began: with the fetch around it, if there is one."""
        return self._open_fetch if self._open_fetch >= 0 else seq

    def _activity_begins(self, seq: int) -> None:
        """A new activity begins; after the last update of a step it begins the next window."""
        if not self._stepped:
            return
        if self._next_start < 0:
            self._next_start = seq
            self._on_opening(seq)
        if self._all_stepped():
            self._close(self._next_start, TRAIN)

    def _all_stepped(self) -> bool:
        """Whether every active optimizer has stepped in this window."""
        if not self._stepped or self._steps_named:
            return False
        return self.last_steps.keys() <= self._stepped or all(
            name in self._stepped for name, step in list(self.last_steps.items()) if self.step - step <= ACTIVE_STEPS
        )

    def _is_updating(self) -> bool:
        """Whether an update is under way, after dropping the updates that raised."""
        with suppress(IndexError):  # another thread was faster
            while self.updates and not self.updates[-1]():
                self.updates.pop()
        return bool(self.updates)

    def _return_to_setup(self, seq: int) -> None:
        """Calls up to `seq` were no training: no optimizer could update their model."""
        self._undecided_forward = self._fetch_start = -1
        if self._stage == TRAIN:
            self.step -= 1
            self._close(seq, SETUP)
            self._stage = SETUP

    def _train_from(self, begin: int) -> None:
        if self._stage in (SETUP, EVAL):
            self._close(begin, self._stage)
        elif self._stage == UNDECIDED and self._undecided_forward >= 0:
            self._close(begin, EVAL)
        if self._stage != TRAIN:
            self._stage = TRAIN
            self.step += 1

    def _evaluate_from(self, begin: int) -> None:
        if self._stage == TRAIN and not self._stepped:
            return  # evaluation in the middle of a step (a target network, a rollout) is part of that step
        if self._stage in (SETUP, TRAIN):
            self._close(begin, self._stage, EVAL)
        self._stage = EVAL

    def _close(self, seq: int, stage: str, opens: str = UNDECIDED) -> None:
        self._stepped.clear()
        self._next_start = self._undecided_forward = -1
        self._stage = UNDECIDED
        self._on_cut(Cut(seq, self.step, stage, opens))
        self._on_change()
