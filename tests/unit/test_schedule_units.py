"""Schedules that are as long as the run of a trainer, in the unit of their steps and in another one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, TensorDataset

from traincheck.reporting.json_report import read_json
from trained_programs import Net, errors_of

lightning = pytest.importorskip("lightning")
transformers = pytest.importorskip("transformers")

from lightning.pytorch.callbacks import GradientAccumulationScheduler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

WRONG_UNIT = "schedule-does-not-fit-run"
EPOCHS, BATCHES, GROUP = 3, 8, 2
UPDATES = EPOCHS * BATCHES // GROUP
SAMPLES = 4

Schedule = Callable[[torch.optim.Optimizer], Any]


def data(batches: int = BATCHES) -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES * batches, 6), torch.arange(SAMPLES * batches) % 3)


def cosine(length: int) -> Schedule:
    return lambda optimizer: schedules.CosineAnnealingLR(optimizer, T_max=length)


def after_warm_up(length: int, warm_up: int = 2) -> Schedule:
    def build(optimizer: torch.optim.Optimizer) -> Any:
        parts = [
            schedules.LinearLR(optimizer, start_factor=0.1, total_iters=warm_up),
            schedules.CosineAnnealingLR(optimizer, T_max=length - warm_up),
        ]
        return schedules.SequentialLR(optimizer, parts, [warm_up])

    return build


def decay_at_the_end(length: int) -> Schedule:
    def build(optimizer: torch.optim.Optimizer) -> Any:
        begin = UPDATES - length
        constant = schedules.ConstantLR(optimizer, factor=1.0, total_iters=begin)
        parts = [constant, schedules.LinearLR(optimizer, 1.0, 0.1, total_iters=length)]
        return schedules.SequentialLR(optimizer, parts, [begin])

    return build


def during_warm_up(length: int) -> Schedule:
    return lambda optimizer: schedules.ChainedScheduler(
        [schedules.LinearLR(optimizer, total_iters=EPOCHS), schedules.PolynomialLR(optimizer, total_iters=length)]
    )


def linear(length: int) -> Schedule:
    return lambda optimizer: transformers.get_linear_schedule_with_warmup(optimizer, 2, length)


def one_cycle(length: int) -> Schedule:
    return lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=length)


def warm_up(length: int) -> Schedule:
    return lambda optimizer: schedules.LinearLR(optimizer, start_factor=0.1, total_iters=length)


def lightning_run(
    schedule: Schedule,
    interval: str = "step",
    *,
    frequency: int = 1,
    epochs: int | None = EPOCHS,
    batches: int = BATCHES,
    group: int = GROUP,
    by_hand: bool = False,
    manual: bool = False,
    stops: bool = False,
    **options: Any,
) -> None:
    class Lit(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = Net(), not manual

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.lr_schedulers().step()
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            if by_hand:
                self.lr_schedulers().step()
            self.trainer.should_stop = stops and self.trainer.global_step > 3

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
            return [optimizer], [{"scheduler": schedule(optimizer), "interval": interval, "frequency": frequency}]

    accumulates = {} if manual else {"accumulate_grad_batches": group}
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **{**accumulates, **options},
    )
    trainer.fit(Lit(), DataLoader(data(batches), batch_size=SAMPLES, shuffle=True))


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": F.cross_entropy(self.net(x), labels)}


def transformers_run(schedule: Schedule, **options: Any) -> None:
    arguments = transformers.TrainingArguments(
        tempfile.gettempdir(),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=SAMPLES,
        gradient_accumulation_steps=GROUP,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = [{"x": x, "labels": y} for x, y in data()]
    trainer = transformers.Trainer(model, arguments, train_dataset=samples, optimizers=(optimizer, schedule(optimizer)))
    trainer.train()


@pytest.mark.parametrize(
    "program",
    [
        partial(lightning_run, cosine(EPOCHS)),
        partial(lightning_run, cosine(UPDATES), "epoch"),
        partial(lightning_run, cosine(EPOCHS * BATCHES)),
        partial(lightning_run, after_warm_up(EPOCHS, 1)),
        partial(lightning_run, after_warm_up(UPDATES), "epoch"),
        partial(lightning_run, after_warm_up(EPOCHS + 2, 2)),
        partial(lightning_run, during_warm_up(UPDATES), "epoch"),
        partial(lightning_run, linear(UPDATES), "epoch"),
        partial(lightning_run, one_cycle(UPDATES), "epoch"),
        partial(lightning_run, cosine(2000), "epoch", epochs=-1, batches=800, max_steps=2000, stops=True),
        partial(transformers_run, cosine(EPOCHS)),
        partial(transformers_run, linear(EPOCHS * BATCHES)),
    ],
)
def test_a_length_in_another_unit_is_an_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert WRONG_UNIT in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        partial(lightning_run, cosine(UPDATES)),
        partial(lightning_run, cosine(EPOCHS), "epoch"),
        partial(lightning_run, after_warm_up(UPDATES)),
        partial(lightning_run, after_warm_up(EPOCHS, 1), "epoch"),
        partial(lightning_run, during_warm_up(UPDATES)),
        partial(lightning_run, one_cycle(UPDATES)),
        partial(lightning_run, one_cycle(EPOCHS), "epoch"),
        partial(lightning_run, linear(UPDATES)),
        partial(lightning_run, warm_up(EPOCHS)),
        partial(lightning_run, decay_at_the_end(EPOCHS)),
        # another length than that of the run
        partial(lightning_run, cosine(UPDATES + 1), "epoch"),
        partial(lightning_run, cosine(EPOCHS * 10), "epoch"),
        # each epoch has one update, so the units are the same
        partial(lightning_run, cosine(EPOCHS), batches=2),
        # once in an epoch, in either way to say so
        partial(lightning_run, cosine(EPOCHS), frequency=BATCHES),
        # one cycle of the cosine in each epoch, and two
        partial(lightning_run, cosine(4), epochs=4),
        partial(lightning_run, cosine(2), epochs=2),
        # trials
        partial(lightning_run, cosine(4), "epoch", max_steps=4, group=1),
        partial(
            lightning_run, cosine(EPOCHS * BATCHES), callbacks=[GradientAccumulationScheduler({0: 2, 1: 1})], group=1
        ),
        partial(lightning_run, cosine(4), "epoch", epochs=None, max_steps=4, group=1),
        partial(lightning_run, cosine(6), "epoch", limit_train_batches=2, group=1),
        partial(lightning_run, cosine(6), "epoch", overfit_batches=2, group=1),
        partial(lightning_run, cosine(4), "epoch", fast_dev_run=4, group=1),
        # the program steps the schedule by itself
        partial(lightning_run, cosine(EPOCHS * BATCHES), "epoch", group=1, by_hand=True),
        partial(lightning_run, cosine(EPOCHS * BATCHES), "epoch", manual=True),
        partial(lightning_run, cosine(EPOCHS), "epoch", manual=True, frequency=2),
        partial(transformers_run, cosine(UPDATES)),
        partial(transformers_run, linear(UPDATES)),
        partial(transformers_run, cosine(EPOCHS), max_steps=6),
    ],
)
def test_what_is_meant_so_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert WRONG_UNIT not in errors_of(tmp_path, program)


def test_a_finding_names_both_units(tmp_path: Path) -> None:
    errors_of(tmp_path, partial(lightning_run, cosine(EPOCHS)))
    (finding,) = (f for f in read_json(tmp_path / "run" / "report.json").findings if f.identity == WRONG_UNIT)
    assert "3 steps, the number of epochs of the run" in str(finding)
    assert "after each update, and the run has 12 updates" in str(finding)
