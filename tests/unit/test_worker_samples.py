"""Workers of a loader that read the same samples, and workers that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from traincheck.reporting.json_report import read_json
from trained_programs import Net, errors_of

SAME = "workers-read-same-samples"
SAMPLES = 48

Order = Callable[["Stream", int, int], list[int]]


def all_of_them(stream: Stream, worker: int, workers: int) -> list[int]:
    return list(range(SAMPLES))


def all_in_an_order(stream: Stream, worker: int, workers: int) -> list[int]:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(worker)).tolist()


def divided(stream: Stream, worker: int, workers: int) -> list[int]:
    return list(range(worker, SAMPLES, workers))


def divided_and_repeated(stream: Stream, worker: int, workers: int) -> list[int]:
    return [*divided(stream, worker, workers)] * workers


def drawn(stream: Stream, worker: int, workers: int) -> list[int]:
    return torch.randint(SAMPLES, (SAMPLES,), generator=torch.Generator().manual_seed(worker)).tolist()


def first_ones(stream: Stream, worker: int, workers: int) -> list[int]:
    """Each worker has the same few samples again and again."""
    return [number % 4 for number in range(SAMPLES)]


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """Samples in the order that `order` gives for a worker."""

    def __init__(self, order: Order) -> None:
        self.order, self.data = order, torch.randn(SAMPLES, 6)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return ((self.data[index], index % 3) for index in self.order(self, worker, workers))


def trained(order: Order, workers: int = 2) -> None:
    loader = DataLoader(Stream(order), batch_size=5, num_workers=workers)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("order", [all_of_them, all_in_an_order])
def test_workers_that_read_all_data_are_an_error(order: Order, workers: int, tmp_path: Path) -> None:
    assert SAME in errors_of(tmp_path, partial(trained, order, workers))


@pytest.mark.parametrize("order", [divided, divided_and_repeated, drawn, first_ones])
def test_workers_with_samples_of_their_own_are_none(order: Order, tmp_path: Path) -> None:
    assert SAME not in errors_of(tmp_path, partial(trained, order))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_single_reader_reads_all_data(workers: int, tmp_path: Path) -> None:
    assert SAME not in errors_of(tmp_path, partial(trained, all_of_them, workers))


def test_equal_orders_show_after_two_rounds_and_others_at_the_end_of_a_pass(tmp_path: Path) -> None:
    steps = []
    for order in (all_of_them, all_in_an_order):
        errors_of(tmp_path / order.__name__, partial(trained, order))
        report = read_json(tmp_path / order.__name__ / "run" / "report.json")
        (finding,) = (finding for finding in report.findings if finding.identity == SAME)
        assert "each of its 2 workers has read the same" in str(finding) and finding.site is not None
        steps.append(finding.step)
    assert steps[0] <= 5 < 20 <= steps[1] <= 21
