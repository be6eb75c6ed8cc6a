"""Readable traces: lines tell windows, windows tell lines."""

from __future__ import annotations

import pytest

from traincheck.testing.readable import from_text, to_text
from traincheck.vocab.events import NO_CALL, Call, Change, Window

TEXT = """\
window setup
window train step=1 rank=2
  lifecycle torch.optim.SGD.zero_grad < torch.optim.Optimizer.zero_grad receiver=SGD site="my train.py:10:main"
    change Net.fc.weight parameter.grad some -> none changed owner=SGD context={"requires_grad":true,"lr":0.5}
  module Net.forward thread=1
    module torch.nn.Linear.forward receiver=Net.fc result={"dtype":"float32"}
  lifecycle torch.optim.SGD.step raised
    change Net.fc.weight parameter.data some -> some fingerprint=0
  change Net.fc.weight parameter.data some -> some changed
window end step=1 index=4
"""


def test_positions_follow_from_order_and_indentation() -> None:
    setup, train, end = from_text(TEXT)
    assert [(call.seq, call.end, call.parent) for call in train.calls] == [
        (0, 2, NO_CALL),
        (3, 6, NO_CALL),
        (4, 5, 3),
        (7, NO_CALL, NO_CALL),
    ]
    assert [(change.seq, change.call) for change in train.changes] == [(1, 0), (8, 7), (9, NO_CALL)]
    assert train.calls[0].levels == ("torch.optim.SGD.zero_grad", "torch.optim.Optimizer.zero_grad")
    assert train.calls[0].site == "my train.py:10:main"
    assert train.changes[0].context == (("requires_grad", True), ("lr", 0.5))
    assert [change.fingerprint for change in train.changes] == [None, 0, None]
    assert (setup.index, train.index, train.rank, end.index, end.stage) == (0, 1, 2, 4, "end")


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
    ("text", "told"),
    [
        ("  function torch.add", "line 1 .* must be a window"),
        ("window train\n  torch.add", "line 2 .* begins with none of"),
        ("window train\n  change a b", "line 2"),
        ("window train step=one", "line 1"),
        ("window train\n  function f colour=red", "line 2 .*colour"),
    ],
)
def test_a_line_that_tells_nothing_is_named(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_text(text)
