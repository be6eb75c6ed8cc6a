"""Built-in rules need no good run: real trainings with an error, and such that look like it and mean it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from traincheck.reporting.json_report import read_json
from trained_programs import Net, clipped, errors_of, loss_of

LOST = "gradients-lost"
NOT_CLIPPED = "clipping-has-no-effect"
NEVER_UPDATED = "parameters-never-updated"
FLOW_STOPS = "gradient-flow-stops"
IN_EVALUATION = "training-in-evaluation-mode"
ACTIVE_DROPOUT = "dropout-active-in-evaluation"
LOSS_INPUT = "unexpected-loss-input"
SAME_ORDER = "same-order-every-epoch"
NO_EFFECT = "flag-without-effect"
NOT_RESTORED = "load-did-not-restore"
SCHEDULE = "schedule-does-not-fit-run"
"""Diagnoses."""


def plain() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        clipped(model)
        optimizer.step()


def accumulated(*, clears_each: bool = False, clips_each: bool = False) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        if clears_each:
            optimizer.zero_grad()
        loss_of(model).backward()
        if clips_each:
            clipped(model)
        if number % 2:
            clipped(model)
            optimizer.step()
            optimizer.zero_grad()


def cleared_at_each_micro_batch() -> None:
    accumulated(clears_each=True)


def clipped_at_each_micro_batch() -> None:
    accumulated(clips_each=True)


def clipped_twice() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        clipped(model)
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        optimizer.step()


def clipped_too_early() -> None:
    """The last micro-batch adds to gradients that were clipped."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        if number % 2:
            clipped(model)
        loss_of(model).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def stepped_now_and_then() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        optimizer.zero_grad()
        loss_of(model).backward()
        if not number % 3:
            optimizer.step()


def clipped_before_the_backward() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        clipped(model)
        loss_of(model).backward()
        optimizer.step()


def clipped_without_parameters() -> None:
    model = Net()
    parameters: Iterator[nn.Parameter] = model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(parameters, 0.01)
        optimizer.step()


def two_networks(*, steps_critic: bool = True) -> None:
    """Each backward of the first also fills gradients of the second, which clears them."""
    maker, critic = nn.Linear(6, 6), Net()
    of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(6):
        of_maker.zero_grad()
        F.cross_entropy(critic(maker(torch.randn(9, 6))), torch.arange(9) % 3).backward()
        of_maker.step()
        of_critic.zero_grad()
        loss_of(critic).backward()
        if steps_critic:
            of_critic.step()


def second_optimizer_never_steps() -> None:
    two_networks(steps_critic=False)


def attacked() -> None:
    """Gradients of an attack are not for an update."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        x = torch.randn(9, 6, requires_grad=True)
        F.cross_entropy(model(x), torch.arange(9) % 3).backward()
        assert x.grad is not None
        optimizer.zero_grad()
        F.cross_entropy(model((x + x.grad.sign() * 0.1).detach()), torch.arange(9) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def with_closures() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def warmed_up() -> None:
    """Gradients that a program looks at before it trains."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        loss_of(model).backward()
        optimizer.zero_grad()
    for _ in range(5):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


class NoGradientsInBody(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = self.body(x)
        return self.head(self.drop(hidden.relu()))


def trained_in_part(*, loaded: bool = False, without_gradients: bool = False) -> None:
    model = NoGradientsInBody() if without_gradients else Net()
    if loaded:
        model.load_state_dict(Net().state_dict())
    optimizer = torch.optim.SGD((model if without_gradients else model.head).parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def a_loaded_body_is_not_trained() -> None:
    trained_in_part(loaded=True)


def a_body_runs_without_gradients() -> None:
    trained_in_part(without_gradients=True)


class WithTeacher(Net):
    """Its target is a frozen average of it, which the optimizer gets as well."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.body).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        return super().forward(x) + F.mse_loss(self.body(x), target)


def a_teacher_is_given_to_the_optimizer() -> None:
    model = WithTeacher()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(model.teacher.parameters(), model.body.parameters(), strict=True):
                average.lerp_(parameter, 0.1)


def trained_in_evaluation_mode(*, head_trains: bool = False) -> None:
    model = Net().eval()
    model.drop.train(head_trains)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def trained_with_a_part_in_training_mode() -> None:
    trained_in_evaluation_mode(head_trains=True)


class Maker(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.Dropout(0.2)(self.body(x).relu()))


def made_in_its_forward() -> None:
    model = Maker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            loss_of(model)
        model.train()


def squashed_scores(*, squashes: bool = True) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        scores = model(torch.randn(9, 6))
        scores = torch.sigmoid(scores).view(-1) if squashes else scores.view(-1)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(scores, (torch.arange(27) % 2).float()).backward()
        optimizer.step()


def plain_scores() -> None:
    squashed_scores(squashes=False)


Loss = Callable[..., torch.Tensor]


def classified(
    *, squashes: Callable[..., torch.Tensor] = F.softmax, loss: Callable[..., torch.Tensor] = F.cross_entropy
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss(squashes(model(torch.randn(9, 6)), dim=1), torch.arange(9) % 3).backward()
        optimizer.step()


def classified_by_log_softmax() -> None:
    """Another log-softmax changes nothing."""
    classified(squashes=F.log_softmax)


def likelihoods_of_probabilities() -> None:
    classified(loss=F.nll_loss)


def likelihoods_of_scores() -> None:
    classified(squashes=lambda scores, dim: scores, loss=F.nll_loss)


def likelihoods_of_log_probabilities() -> None:
    classified(squashes=F.log_softmax, loss=F.nll_loss)


def same_order_each_pass(*, sets_epoch: bool = False) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 6), torch.arange(40) % 3)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(3):
        if sets_epoch:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def a_gradient_is_taken_away() -> None:
    """The last layer does not learn in the first steps (DINO)."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        model.head.weight.grad = None
        optimizer.step()


def another_order_each_pass() -> None:
    same_order_each_pass(sets_epoch=True)


def frozen_in_vain(*, misspells: bool = False, freezes: bool = False) -> None:
    model = Net()
    for parameter in model.body.parameters():
        if freezes:
            parameter.requires_grad = False
        elif misspells:
            parameter.require_grad = False  # type: ignore[attr-defined]
    if not misspells and not freezes:
        model.body.requires_grad = False  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def frozen_in_vain_between_passes(*, counts: bool = False) -> None:
    model, data = Net(), TensorDataset(torch.randn(160, 6), torch.arange(160) % 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8)
    for number in range(2):
        if number:
            model.body.requires_grad = False  # type: ignore[assignment]
        for x, y in itertools.islice(loader, len(loader)) if counts else loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def frozen_in_vain_between_counted_passes() -> None:
    """No fetch finds the loader exhausted."""
    frozen_in_vain_between_passes(counts=True)


def frozen_in_vain_before_the_fine_tuning() -> None:
    model = Net()
    for steps in (20, 3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        model.body.requires_grad = False  # type: ignore[assignment]


def frozen_by_a_misspelled_flag() -> None:
    frozen_in_vain(misspells=True)


def frozen() -> None:
    frozen_in_vain(freezes=True)


class PlainList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(6, 6)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.layers[0](x))


def layers_in_a_plain_list() -> None:
    model = PlainList()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def keeps_its_best(keep: Callable[[nn.Module], dict[str, torch.Tensor]]) -> None:
    """Train with early stopping: the weights after the second step are loaded at the end."""
    model, best = Net(), dict[str, torch.Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        if number == 1:
            best = keep(model)
    model.load_state_dict(best)


def the_best_weights_are_not_copied() -> None:
    keeps_its_best(lambda model: model.state_dict())


def their_tensors_are_not_copied() -> None:
    keeps_its_best(lambda model: dict(model.state_dict().items()))


def the_best_weights_are_copied() -> None:
    keeps_its_best(lambda model: copy.deepcopy(model.state_dict()))


def follows_another(*, is_itself: bool = True, loads: str = "all") -> None:
    """A network loads the state of another one after every second update, or those entries of a file that fit."""
    model = Net()
    target = model if is_itself else copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(9, 6)), target(torch.randn(9, 6)).detach()).backward()
        optimizer.step()
        if number % 2:
            state = model.state_dict()
            if loads != "all":
                state.update({name: torch.zeros_like(state[name]) for name in state if loads in name})
            target.load_state_dict(state)


def the_target_is_the_network() -> None:
    follows_another()


def a_file_has_no_entry_that_fits() -> None:
    follows_another(loads="encoder")


def the_target_is_a_copy() -> None:
    follows_another(is_itself=False)


def a_file_has_an_entry_that_fits() -> None:
    follows_another(loads="body.bias")


def weights_are_averaged_in_place() -> None:
    """Changes of the returned state change the model; loading it afterwards is superfluous, and no error."""
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        state = model.state_dict()
        for name, values in other.state_dict().items():
            state[name].lerp_(values, 0.5)
        model.load_state_dict(state)


def beyond_its_schedule() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4)
    for _ in range(8):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        scheduler.step()


def ascends_in_one_group() -> None:
    """A multiplier of a constraint grows with it, by a negative rate of its own."""
    model, multiplier = Net(), nn.Parameter(torch.ones(()))
    groups = [{"params": model.parameters()}, {"params": [multiplier], "lr": -0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        (loss_of(model) + multiplier * (model.head.weight.square().mean() - 0.05)).backward()
        optimizer.step()


def climbs_in_every_other_step() -> None:
    """To the worst weights nearby, and back with the gradients from there."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.param_groups[0]["lr"] = -0.02 if step % 2 and step > 4 else 0.1
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def a_backward_for_each_loss_after_a_while() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        first, second = loss_of(model), loss_of(model)
        optimizer.zero_grad()
        if step < 10:
            (first + second).backward()
        else:
            first.backward()
            second.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("program", "diagnosis"),
    [
        (the_best_weights_are_not_copied, NOT_RESTORED),
        (their_tensors_are_not_copied, NOT_RESTORED),
        (the_target_is_the_network, NOT_RESTORED),
        (a_file_has_no_entry_that_fits, NOT_RESTORED),
        (cleared_at_each_micro_batch, LOST),
        (stepped_now_and_then, LOST),
        (second_optimizer_never_steps, LOST),
        (clipped_too_early, NOT_CLIPPED),
        (clipped_at_each_micro_batch, NOT_CLIPPED),
        (clipped_before_the_backward, NOT_CLIPPED),
        (clipped_without_parameters, NOT_CLIPPED),
        (layers_in_a_plain_list, NEVER_UPDATED),
        (trained_in_part, NEVER_UPDATED),
        (a_body_runs_without_gradients, FLOW_STOPS),
        (trained_in_evaluation_mode, IN_EVALUATION),
        (made_in_its_forward, ACTIVE_DROPOUT),
        (squashed_scores, LOSS_INPUT),
        (classified, LOSS_INPUT),
        (likelihoods_of_probabilities, LOSS_INPUT),
        (likelihoods_of_scores, LOSS_INPUT),
        (same_order_each_pass, SAME_ORDER),
        (beyond_its_schedule, SCHEDULE),
        (frozen_in_vain, NO_EFFECT),
        (frozen_by_a_misspelled_flag, NO_EFFECT),
        (frozen_in_vain_between_passes, NO_EFFECT),
        (frozen_in_vain_between_counted_passes, NO_EFFECT),
        (frozen_in_vain_before_the_fine_tuning, NO_EFFECT),
    ],
)
def test_an_error_is_found_without_a_good_run(tmp_path: Path, program: Callable[[], None], diagnosis: str) -> None:
    assert diagnosis in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        plain,
        the_best_weights_are_copied,
        weights_are_averaged_in_place,
        the_target_is_a_copy,
        a_file_has_an_entry_that_fits,
        accumulated,
        two_networks,
        attacked,
        with_closures,
        warmed_up,
        a_gradient_is_taken_away,
        a_loaded_body_is_not_trained,
        a_teacher_is_given_to_the_optimizer,
        clipped_twice,
        trained_with_a_part_in_training_mode,
        plain_scores,
        classified_by_log_softmax,
        likelihoods_of_log_probabilities,
        another_order_each_pass,
        frozen,
        ascends_in_one_group,
        climbs_in_every_other_step,
        a_backward_for_each_loss_after_a_while,
    ],
)
def test_what_is_meant_so_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert not errors_of(tmp_path, program)


def test_the_order_of_a_pass_is_compared_at_its_first_updates(tmp_path: Path) -> None:
    errors_of(tmp_path, same_order_each_pass)
    report = read_json(tmp_path / "run" / "report.json")
    steps = [finding.step for finding in report.findings if finding.identity == SAME_ORDER]
    assert steps == [12]  # the second pass begins with step 11
