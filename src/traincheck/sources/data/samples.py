"""Fingerprints each sample that a model is called with, so that samples that come again can be counted.

relations/consistent/repeated_samples.py compares the samples of a pass, and those of an evaluation with those of the
training. A sample is a row of the largest input. Zeros at its end do not count, so the padding of a batch does not
matter where it is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from traincheck.sources.data.batches import tensors_of_call
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.value_facts import readable
from traincheck.vocab.demand import SAMPLES
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

SOURCE, KIND = "modules", "module"

MIN_COLUMNS, MAX_COLUMNS = 4, 512
"""Fewer elements of a row may be equal by chance; of more, this number is read, at equal distances."""
MAX_ROWS, MAX_DEVICE_ROWS = 256, 32
"""Rows of a batch that are read. From an accelerator, each row is a number to transfer."""
DIGITS = 8
"""Hexadecimal digits of a fingerprint."""

_CONTEXTS = {learns: facts(kind=KIND, learns=learns) for learns in (False, True)}
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTORS, _MASK = (0x27D4EB2F165667C5, 0x165667B19E3779F9), 0xFFFFFFFF


def read_samples(
    recorder: Recorder, call: int, model: str, args: Sequence[Any], keywords: Mapping[str, Any], *, learns: bool
) -> None:
    """Record the fingerprints of the samples in a call of a model, in one reading."""
    with hidden_from_modes():
        candidates = [tensor for tensor in tensors_of_call((*args, *keywords.values())) if _has_samples(tensor)]
        if not candidates:
            return
        batch = max(candidates, key=lambda tensor: tensor.numel() // tensor.shape[0])
        if not readable(batch):
            return
        digests = _digests(batch[: MAX_ROWS if is_on_host(batch) else MAX_DEVICE_ROWS])
        if is_on_host(batch):
            value: Any = _text(*digests.tolist())
        else:
            value = DeferredValue(tuple(digests.unbind()), _text)

        def conclude(resolved: list[str], next_seq: NextSeq) -> None:
            reading = Reading(next_seq(), call, model, KIND, SAMPLES, resolved[0], context=_CONTEXTS[learns])
            recorder.record_reading(reading)

        recorder.transfers.when_ready(SOURCE, [value], conclude, events=1)


def _has_samples(tensor: torch.Tensor) -> bool:
    """Whether a tensor has several rows that are long enough to differ."""
    is_batch = tensor.dim() > 1 and tensor.shape[0] > 1 and tensor.numel() >= MIN_COLUMNS * tensor.shape[0]
    return is_batch and not tensor.is_complex()


def _digests(batch: torch.Tensor) -> torch.Tensor:
    """Return a number for each row; sums of integers are the same in any order."""
    rows = batch.detach().reshape(batch.shape[0], -1)
    rows = rows[:, :: -(-rows.shape[1] // MAX_COLUMNS)].contiguous()
    numbers = _mixed(rows.view(_AS_INTEGERS[rows.element_size()]).to(torch.int64))
    weights = _mixed(torch.arange(1, numbers.shape[1] + 1, device=numbers.device)) | 1
    total = (numbers * weights).sum(dim=1)
    return (total ^ (total >> 32)) & _MASK


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Spread the bits of numbers; zero stays zero. (Products of integers wrap around.)"""
    for factor in _FACTORS:
        numbers = (numbers ^ (numbers >> 29)) * factor
    return numbers ^ (numbers >> 32)


def _text(*digests: float) -> str:
    return "".join(f"{int(digest):0{DIGITS}x}" for digest in digests)
