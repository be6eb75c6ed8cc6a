"""Steps and stages: where one training step ends and the next begins, told by what the program does.

Note [One window per step]
A training step is what a person would count: the work up to and including one update of the parameters. Its end is
only known later (does the generator's step follow the discriminator's?), so a cut is made in one of two ways:

* *at once*, when something new begins (a batch is fetched, an outermost module is called, a backward starts) after
  every active optimizer of the program has stepped in this window;
* *backdated*, when an optimizer steps that has already stepped in this window: the new step began with the first new
  activity after the last update.

What a loop does right after an update (scheduler, zero_grad, logging) thereby stays with the step it follows.
Whether there is another batch is known when its fetch ends: one that finds the loader exhausted still belongs to what
came before it, and what follows it is new.
An update that raises is none: the step goes on until one succeeds. An optimizer that is built after every other has
stepped begins a new phase, so it closes the step as well (it would be waited for otherwise). One that is built before
the first backward ends what was set-up: a model that was called until then (for its shapes, its targets, its lazy
parameters) was not trained by it.
An outermost forward in evaluation mode without gradients makes an evaluation window; one in evaluation mode *with*
gradients is either evaluation that forgot no_grad or training in the wrong mode: the backward that follows tells.

A program without an optimizer may update its parameters itself (manual_updates.py). That update is seen when the next
activity begins, and is treated as the update of an optimizer with the name of the model.

A rank whose data has ended answers the other ranks when it leaves its `Join`, as long as these train. Their steps count
for it as well, so that steps of one number stay steps that the ranks make together; what follows the `Join` is new on
every rank.

Where the next window may begin is told as soon as it is seen (`on_opening`), and again where that turns out to have
been too early: what comes from there on is all that there is of it, should a cut be backdated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from traincheck.vocab.events import END, EVAL, SETUP, TRAIN

ACTIVE_STEPS = 20
"""An optimizer that has not stepped for this many steps is not waited for: no alternation in use is longer, and
waiting for one that is done (of an earlier phase) would only delay every cut to the next update."""

UNDECIDED = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """A window ends before position `seq`; it had this step and stage."""

    seq: int
    step: int
    stage: str


class StepTracker:
    """Counts training steps and cuts windows; sources tell it what begins and ends.

    `step` is the step under way: 0 until the first training activity, then 1, 2, ... Optimizers are known by a name.
    """

    def __init__(self, on_cut: Callable[[Cut], None], on_opening: Callable[[int], None] = lambda seq: None) -> None:
        self._on_cut = on_cut
        self._on_opening = on_opening
        self.on_change: Callable[[], None] = lambda: None  # called when `awaits_forward` may have become True
        self._last_step_of: dict[str, int] = {}  # optimizer -> step of its last update (or of its making)
        self._by_hand: set[str] = set()  # models that the program updates without an optimizer
        self.optimizers: set[str] = set()  # optimizers that exist
        self.before_activity: Callable[[bool], object] | None = None  # see manual_updates.py
        self.forwards, self.backwards = 0, 0  # calls of outermost modules, and backwards
        self.made = 0  # updates, and steps that the program itself has named
        self.before_first: Any = None  # what is kept of parameters until the first update
        self._stepped: set[str] = set()  # stepped in this window
        self.updates: list[Callable[[], bool]] = []  # update calls under way: whether each still runs
        self._reopened = -1  # first new activity after the last update
        self._fetched = -1  # first batch fetch (or end of a loader) since the last outermost forward
        self._fetching = -1  # batch fetch under way (the outermost)
        self._maybe = -1  # first forward of this window that may be evaluation or training
        self._kind = SETUP
        self._explicit = False  # the program says itself where steps end
        self._told = False  # the program says itself which stage this is
        self.step = 0

    @property
    def updating(self) -> bool:
        """Whether an update is under way."""
        return bool(self.updates)

    @property
    def coming(self) -> int:
        """The step of the window that is open, or that it will be if it turns out to be one of training."""
        return self.step if self._kind == TRAIN else self.step + 1

    @property
    def setting_up(self) -> bool:
        """Whether nothing was trained or evaluated yet."""
        return self._kind == SETUP

    @property
    def evaluating(self) -> bool:
        """Whether the window that is open is known to be an evaluation."""
        return self._kind == EVAL

    @property
    def awaits_forward(self) -> bool:
        """Whether the next call of an outermost module tells something; in the midst of a step it does not."""
        return self._kind == UNDECIDED or bool(self._stepped) or self.before_activity is not None

    @property
    def undecided(self) -> bool:
        """Whether it is not known yet what the window that is open is about."""
        return self._kind == UNDECIDED

    def optimizer_built(self, name: str, seq: int) -> None:
        """An optimizer exists; steps wait for it."""
        if self.before_activity is not None:
            self.before_activity(True)
        if self._all_stepped():
            self._close(self._reopened if self._reopened >= 0 else seq, TRAIN)
        elif not self.made and not self.backwards and not self._explicit and not self._told:
            self._still_setting_up(seq)
        self._last_step_of[name] = self.step
        self.optimizers.add(name)
        while self._by_hand:  # from here on only optimizers make steps
            self._last_step_of.pop(self._by_hand.pop(), None)

    def optimizer_gone(self, name: str) -> None:
        """An optimizer was deleted; steps no longer wait for it."""
        self._last_step_of.pop(name, None)
        self.optimizers.discard(name)

    def fetch_begins(self, seq: int) -> None:
        """A batch is about to be fetched; what the data set computes on the way belongs to it."""
        if self._fetching < 0 and not self._still_updating():
            if self.before_activity is not None:
                self.before_activity(False)
            self._fetching = seq
            if self._stepped and self._reopened < 0:
                self._on_opening(seq)

    def fetch_ends(self, began: int, exhausted_at: int = -1) -> None:
        """The fetch that began at `began` gave a batch, or (at `exhausted_at`) found none.

        Nothing is said where an update went on meanwhile (a loader that is read by another thread), or where another
        fetch was under way around it, which will end by itself.
        """
        if self.fetch_fails(began):
            seq = began if exhausted_at < 0 else exhausted_at
            self._activity(seq)
            if self._fetched < 0:
                self._fetched = seq
            self.on_change()

    def fetch_fails(self, began: int) -> bool:
        """The fetch that began at `began` raised; whether it was the one that counts."""
        if self._fetching != began:
            return False
        self._fetching = -1
        return True

    def fetch_lost(self) -> None:
        """Nobody will tell the end of a fetch that is under way."""
        self._fetching = -1

    def forward(self, seq: int, training: bool, grad: bool) -> None:
        """An outermost module is about to be called."""
        self.forwards += 1
        if self._still_updating():
            return
        if self.before_activity is not None:
            self.before_activity(True)
        seq = self._begun(seq)
        self._activity(seq)
        begin = self._fetched if self._fetched >= 0 else seq
        self._fetched = -1
        if self._told:
            return
        if grad and training:
            self._train_from(begin)
        elif grad:
            self._maybe = begin if self._maybe < 0 else self._maybe
        elif not training:
            self._evaluate_from(begin)

    def computes(self, seq: int) -> None:
        """Something is about to run of which it is not known what it is (a function that was compiled)."""
        if not self._still_updating():
            if self.before_activity is not None:
                self.before_activity(True)
            self._activity(self._begun(seq))

    def backward(self, seq: int) -> None:
        """A backward is about to run."""
        self.backwards += 1
        if self._still_updating():
            return
        if self.before_activity is not None:
            self.before_activity(True)
        seq = self._begun(seq)
        self._activity(seq)
        if self._kind in (SETUP, EVAL):
            self._train_from(self._maybe if self._maybe >= 0 else seq)
        else:
            self._maybe = -1
            self._train_from(seq)

    def update_begins(self, name: str, seq: int, runs: Callable[[], bool] = lambda: True) -> None:
        """The optimizer `name` is about to update parameters; `runs` says later whether it still does (or raised)."""
        inside = self._still_updating()
        self.updates.append(runs)
        self.optimizers.add(name)
        if inside:  # a part of another's step, which is what is waited for
            self._last_step_of.pop(name, None)
            return
        if name in self._stepped and not self._explicit:
            self._close(self._reopened if self._reopened >= 0 else seq, TRAIN)
        self._train_from(self._fetched if self._fetched >= 0 else seq)

    def update_ends(self, name: str) -> None:
        """The update is done (or was left out by a gradient scaler)."""
        if not self.update_fails():
            self.made += 1
            self.before_first = None
            self._stepped.add(name)
            self._last_step_of[name] = self.step
            self._reopened = self._fetched = self._fetching = -1
            self.on_change()

    def updated_by_hand(self, names: Collection[str], seq: int) -> None:
        """The program itself has updated the parameters of the models `names`, at `seq`."""
        if not self._explicit and not self._stepped.isdisjoint(names):
            self._close(self._reopened if self._reopened >= 0 else seq, TRAIN)
        self._train_from(self._fetched if self._fetched >= 0 else seq)
        self.made += 1
        self._by_hand.update(names)
        self._stepped.update(names)
        self._last_step_of.update(dict.fromkeys(names, self.step))
        self._reopened = self._fetched = self._fetching = -1
        self.on_change()

    def update_fails(self) -> bool:
        """The update raised; whether another is still under way around it."""
        if self._still_updating():
            with suppress(IndexError):  # another thread was faster
                self.updates.pop()
        return bool(self.updates)

    def explicit_step(self, seq: int) -> None:
        """The program itself says that a step ends here; from now on nothing else ends one."""
        if self.before_activity is not None:
            self.before_activity(True)
        self._explicit = True
        self.made += 1
        self._train_from(seq)
        self._close(seq, TRAIN)

    def ranks_join(self, seq: int, missed: int) -> None:
        """A `Join` of uneven data is over on all ranks (at `seq`); others made `missed` steps without this one."""
        self._activity(seq)
        if self._kind == TRAIN or self._still_updating():
            return  # in the middle of a step, which keeps its number
        if missed and self._kind in (SETUP, EVAL):
            self._close(seq, self._kind)
        self.step += missed
        self._last_step_of = {name: step + missed for name, step in self._last_step_of.items()}
        self.on_change()

    def stage_begins(self, stage: str, seq: int) -> None:
        """The program itself says what it does from here on; until `stage_ends` nothing else is believed."""
        if self.before_activity is not None:
            self.before_activity(True)
        if stage == EVAL:
            if self._kind != UNDECIDED:
                self._close(seq, self._kind)
            self._kind = EVAL
        else:
            self._train_from(seq)
        self._told = True

    def stage_ends(self, seq: int) -> None:
        """The stage that the program named is over."""
        self._told = False
        if self._kind == EVAL:
            self._close(seq, EVAL)

    @property
    def completed(self) -> int:
        """The training steps that were made: one under way counts once it has updated something."""
        return self.step - 1 if self._kind == TRAIN and not self._stepped else self.step

    def counts(self, at_least: int) -> dict[str, Any]:
        """The fields of a note about steps: the last step (`at_least` so many), updates, calls and backwards."""
        steps = max(at_least, self.completed)
        return {"steps": steps, "updates": self.made, "forwards": self.forwards, "backwards": self.backwards}

    def finish(self, began: int, seq: int) -> None:
        """The run ends: close what was open when the end began, then (at `seq`) the window of the end itself."""
        if self._kind == TRAIN and self._stepped:
            self._close(self._reopened if self._reopened >= 0 else began, TRAIN)
        stage = self._kind or (EVAL if self._maybe >= 0 else END)
        self._close(seq, stage)

    # -- cutting -------------------------------------------------------------------------------------------------

    def _begun(self, seq: int) -> int:
        """Where new activity began that is told at `seq`: with the fetch that it happens in, if there is one."""
        return self._fetching if self._fetching >= 0 else seq

    def _activity(self, seq: int) -> None:
        """Something new begins; after the last update of a step it begins the next window."""
        if not self._stepped:
            return
        if self._reopened < 0:
            self._reopened = seq
            self._on_opening(seq)
        if self._all_stepped():
            self._close(self._reopened, TRAIN)

    def _all_stepped(self) -> bool:
        """Whether every active optimizer has stepped in this window."""
        if not self._stepped or self._explicit:
            return False
        return all(
            name in self._stepped for name, step in list(self._last_step_of.items()) if self.step - step <= ACTIVE_STEPS
        )

    def _still_updating(self) -> bool:
        """Whether an update is under way; those that raised are forgotten."""
        with suppress(IndexError):  # another thread was faster
            while self.updates and not self.updates[-1]():
                self.updates.pop()
        return bool(self.updates)

    def _still_setting_up(self, seq: int) -> None:
        """What was called up to `seq` was no training: nothing could be updated by it."""
        self._maybe = self._fetched = -1
        if self._kind == TRAIN:
            self.step -= 1
            self._close(seq, SETUP)
            self._kind = SETUP

    def _train_from(self, begin: int) -> None:
        if self._kind in (SETUP, EVAL):
            self._close(begin, self._kind)
        elif self._kind == UNDECIDED and self._maybe >= 0:
            self._close(begin, EVAL)
        if self._kind != TRAIN:
            self._kind = TRAIN
            self.step += 1

    def _evaluate_from(self, begin: int) -> None:
        if self._kind == TRAIN and not self._stepped:
            return  # evaluation in the middle of a step (a target network, a rollout) is part of that step
        if self._kind in (SETUP, TRAIN):
            self._close(begin, self._kind)
        self._kind = EVAL

    def _close(self, seq: int, stage: str) -> None:
        self._stepped.clear()
        self._reopened = self._maybe = -1
        self._kind = UNDECIDED
        self._on_cut(Cut(seq, self.step, stage))
        self.on_change()
