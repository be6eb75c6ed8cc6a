"""Readable traces convert lines to windows, and windows to lines."""

from __future__ import annotations

import pytest

from traincheck.testing.readable_traces import from_text, to_text
from traincheck.vocab.events import NO_CALL, Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import FactValue

TEXT = """\
window setup
window train step=1 rank=2
  lifecycle torch.optim.SGD.zero_grad < torch.optim.Optimizer.zero_grad receiver=SGD site="my train.py:10:main"
    change Net.fc.weight parameter.grad some -> none changed owner=SGD context={"requires_grad":true,"lr":0.5}
  module Net.forward thread=1
    module torch.nn.Linear.forward receiver=Net.fc result={"dtype":"float32"}
      tensor input bfloat16[4,8] storage=~1 facts={"finite":true,"norm":1.5}
      tensor result float32[] requires_grad fingerprint=0
      reading worker.random.python "DataLoader#1 worker 0" 17
  reading hyperparameter.lr SGD.param_groups[0] 0.1
  reading parameter.dtype Net.fc.weight "float32" role=saved context={"tied":false}
  lifecycle torch.optim.SGD.step raised
    change Net.fc.weight parameter.data some -> some fingerprint=0
  change Net.fc.weight parameter.data some -> some changed
window end step=1 index=4
"""


def test_positions_follow_from_order_and_indentation() -> None:
    setup, train, end = from_text(TEXT)
    assert [(call.seq, call.end, call.parent) for call in train.calls] == [
        (0, 2, NO_CALL),
        (3, 7, NO_CALL),
        (4, 6, 3),
        (10, NO_CALL, NO_CALL),
    ]
    assert [(change.seq, change.call) for change in train.changes] == [(1, 0), (11, 10), (12, NO_CALL)]
    assert train.calls[0].levels == ("torch.optim.SGD.zero_grad", "torch.optim.Optimizer.zero_grad")
    assert train.calls[0].site == "my train.py:10:main"
    assert train.changes[0].context == (("requires_grad", True), ("lr", 0.5))
    assert [change.fingerprint for change in train.changes] == [None, 0, None]
    assert (setup.index, train.index, train.rank, end.index, end.stage) == (0, 1, 2, 4, "end")


def test_tensors_and_readings_are_of_the_call_above_them() -> None:
    window = from_text(TEXT)[1]
    assert window.by_seq[4].tensors == (
        TensorSummary("input", "bfloat16", (4, 8), storage="~1", facts=(("finite", True), ("norm", 1.5))),
        TensorSummary("result", "float32", (), requires_grad=True, fingerprint=0),
    )
    assert not window.by_seq[3].tensors
    assert window.readings == (
        Reading(5, 4, "DataLoader#1 worker 0", "worker", "random.python", 17),
        Reading(8, NO_CALL, "SGD.param_groups[0]", "hyperparameter", "lr", 0.1),
        Reading(9, NO_CALL, "Net.fc.weight", "parameter", "dtype", "float32", "saved", (("tied", False),)),
    )


def test_the_value_of_a_reading_is_json() -> None:
    values: tuple[FactValue, ...] = (True, 1, 1.0, None, "1", "true", "", float("inf"), 2**64 - 1, -1)
    readings = tuple(Reading(n, NO_CALL, "x", "run", "steps", value) for n, value in enumerate(values))
    windows = [Window(0, 1, "train", readings=readings)]
    assert repr(from_text(to_text(windows))) == repr(windows)


def test_lines_survive() -> None:
    assert to_text(from_text(TEXT)) == TEXT


def test_positions_are_written_where_indentation_cannot_tell_them() -> None:
    calls = (
        Call(5, 12, NO_CALL, "project", ("a b", 'say "so"', "x=1"), thread=0),
        Call(6, 14, NO_CALL, "project", ("other",), thread=1),
        Call(8, 9, 5, "function", ("torch.add",)),
    )
    changes = (Change(10, 5, "Net.w", "parameter", "data", "some", "some", False),)
    windows = [Window(0, 1, "train", calls, changes, process=9)]
    assert "seq=8 end=9 parent=5" in to_text(windows)
    assert from_text(to_text(windows)) == windows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  function torch.add", "line 1 .* must be a window"),
        ("window train\n  torch.add", "line 2 .* begins with none of"),
        ("window train\n  change a b", "line 2"),
        ("window train step=one", "line 1"),
        ("window train\n  function f colour=red", "line 2 .*colour"),
        ("window train\n  tensor input float32[4]", "line 2 .* below its call"),
        ("window train\n  function f\n    tensor input float32", "line 3 .* no dtype and shape"),
        ("window train\n  function f\n    tensor input float32[4] grad", "line 3 .* not 'requires_grad'"),
        ("window train\n  function f tensors=3", "line 2 .*tensors"),
        ("window train\n  reading run.steps run fast", "line 2"),
    ],
)
def test_a_line_without_an_event_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_text(text)
