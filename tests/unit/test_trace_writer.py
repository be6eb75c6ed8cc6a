"""The writer: what it promises about files, failures and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from traincheck.errors import OutputError
from traincheck.testing.readable_traces import from_text
from traincheck.trace import columns
from traincheck.trace.reader import read_windows
from traincheck.trace.schema import COLUMNS
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import NO_CALL, Call, Reading, TensorSummary, Window
from traincheck.vocab.facts import FactValue

TRACE = """
window setup
window train step=1
  lifecycle torch.optim.SGD.zero_grad < torch.optim.Optimizer.zero_grad receiver=SGD site=train.py:10:main
    change Net.fc.weight parameter.grad some -> none changed owner=SGD context={"requires_grad":true}
  module torch.nn.Linear.forward receiver=Net.fc context={"training":true} result={"dtype":"float32"}
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD args={"lr":0.1,"flag":true,"n":1}
    change Net.fc.weight parameter.data some -> some changed owner=SGD fingerprint=18446744073709551615
window eval step=1
  module torch.nn.Linear.forward receiver=Net.fc context={"training":false}
"""


@pytest.fixture
def windows() -> list[Window]:
    return from_text(TRACE)


def test_windows_round_trip_and_an_idle_process_leaves_no_file(tmp_path: Path, windows: list[Window]) -> None:
    with TraceWriter(tmp_path, 0, 0) as writer:
        assert not writer.path.exists()
        for window in windows:
            writer.write(window)
    TraceWriter(tmp_path, 1, 1).close()
    assert list(tmp_path.iterdir()) == [tmp_path / "events-0-0.arrows"]
    assert list(read_windows(writer.path)) == windows
    assert writer.windows == 3
    assert writer.bytes_written == writer.path.stat().st_size


def test_windows_carry_rank_and_process_of_the_writer(tmp_path: Path, windows: list[Window]) -> None:
    with TraceWriter(tmp_path, 3, 4242) as writer:
        writer.write(windows[0])
    assert writer.path.name == "events-3-4242.arrows"
    assert [(window.rank, window.process) for window in read_windows(writer.path)] == [(3, 4242)]


def test_the_file_is_an_arrow_table_of_calls_and_changes(tmp_path: Path, windows: list[Window]) -> None:
    with TraceWriter(tmp_path, 0, 0) as writer:
        for window in windows:
            writer.write(window)
    with pa.ipc.open_stream(writer.path) as stream:
        table = stream.read_all()
    assert table.column_names == [name for name, _, _ in COLUMNS]
    rows = table.to_pylist()
    events = ["window"] * 2 + ["call"] * 3 + ["change"] * 2 + ["window", "call"]
    assert [row["event"] for row in rows] == events
    filled = {name: value for name, value in rows[5].items() if value is not None}
    assert filled == {
        "window": 1,
        "step": 1,
        "stage": "train",
        "event": "change",
        "seq": 1,
        "parent": 0,
        "kind": "parameter",
        "name": "Net.fc.weight",
        "receiver": "SGD",
        "context": '{"requires_grad":true}',
        "attribute": "grad",
        "before": "some",
        "after": "none",
        "changed": True,
    }
    assert rows[4]["levels"] == "torch.optim.SGD.step < torch.optim.Optimizer.step"
    assert rows[4]["args"] == '{"lr":0.1,"flag":true,"n":1}'


def test_tensors_and_readings_are_rows_of_the_table(tmp_path: Path) -> None:
    (window,) = from_text("""
window train step=1
  function torch.nn.functional.relu
    tensor input bfloat16[4,8] requires_grad storage=w fingerprint=18446744073709551615 facts={"norm":0.5,"zero":false}
    tensor result float32[]
    reading parameter.data Net.w 7 role=saved context={"tied":false}
    reading parameter.dtype Net.w "bfloat16"
    reading scheduler.last_epoch StepLR 3
    reading hyperparameter.lr SGD.param_groups[0] 0.1
""")
    with TraceWriter(tmp_path, 0, 0) as writer:
        writer.write(window)
    assert list(read_windows(writer.path)) == [window]
    with pa.ipc.open_stream(writer.path) as stream:
        table = stream.read_all().drop(["window", "step", "stage", "kind"])
    rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    assert rows[1]["tensors"] == 2
    reading = {"event": "reading", "parent": 0, "role": "live", "context": "{}"}
    assert rows[2:6] == [
        reading
        | {
            "seq": 1,
            "name": "Net.w",
            "attribute": "data",
            "role": "saved",
            "context": '{"tied":false}',
            "fingerprint": 7,
        },
        reading | {"seq": 2, "name": "Net.w", "attribute": "dtype", "value": '"bfloat16"'},
        reading | {"seq": 3, "name": "StepLR", "attribute": "last_epoch", "integer": 3},
        reading | {"seq": 4, "name": "SGD.param_groups[0]", "attribute": "lr", "number": 0.1},
    ]
    shared = {"type": "bfloat16[4,8] requires_grad", "storage": "w", "context": '{"zero":false}', "number": 0.5}
    assert rows[6:] == [
        {"event": "tensor", "parent": 0, "role": "input", "fingerprint": 2**64 - 1, **shared},
        {"event": "tensor", "parent": 0, "role": "result", "type": "float32[]", "storage": "", "context": "{}"},
    ]


def test_reading_values_keep_their_types(tmp_path: Path) -> None:
    values: tuple[FactValue, ...] = (True, 1, 1.0, False, 0, 0.0, -0.0, None, "1", "", -1, 2**64, float("-inf"), True)
    readings = tuple(Reading(n, NO_CALL, "x", "run", "data", value) for n, value in enumerate(values))
    readings += tuple(reading._replace(attribute="steps") for reading in readings)
    with TraceWriter(tmp_path, 0, 0) as writer:
        writer.write(Window(0, 0, "train", readings=readings))
        writer.write(Window(1, 0, "train", readings=readings[::-1]))
    first, second = read_windows(writer.path)
    assert repr(first.readings) == repr(readings)
    assert repr(second.readings) == repr(readings[::-1])


def step_with_tensors(number: int, length: int) -> Window:
    """A step whose tensors have other values than those of any other step."""

    def tensors(call: int) -> tuple[TensorSummary, ...]:
        values = (("finite", True), ("norm", number + call / 7))
        return (
            TensorSummary("input", "float32", (8, length), False, f"~{call}", hash((number, call)) % 2**64, values),
            TensorSummary("result", "float32", (8, length), True, f"~{call + 1}"),
        )

    calls = tuple(Call(2 * n, 2 * n + 1, NO_CALL, "function", (f"f{n % 9}",), tensors=tensors(n)) for n in range(90))
    readings = tuple(Reading(200 + n, NO_CALL, "SGD", "optimizer_state", "step", number) for n in range(3))
    losses = tuple(Reading(300 + n, NO_CALL, "SGD", "hyperparameter", "lr", 1 / (number + n + 1)) for n in range(3))
    return Window(number, number, "train", calls, readings=readings + losses)


def test_numbers_that_change_in_each_step_are_in_no_dictionary(tmp_path: Path) -> None:
    windows = [step_with_tensors(number, length=16) for number in range(5)]
    with TraceWriter(tmp_path, 0, 0) as writer:
        for window in windows:
            writer.write(window)
    assert list(read_windows(writer.path)) == windows
    with pa.ipc.open_stream(writer.path) as stream:
        stream.read_all()
        assert stream.stats.num_dictionary_batches == 17
        assert stream.stats.num_dictionary_deltas == 0


def test_batches_of_varying_length_bring_one_entry_for_each_length(tmp_path: Path) -> None:
    windows = [step_with_tensors(number, length=16 + number) for number in range(5)]
    with TraceWriter(tmp_path, 0, 0) as writer:
        for window in windows:
            writer.write(window)
    with pa.ipc.open_stream(writer.path) as stream:
        *_, last = stream
        entries = [len(column.dictionary) for column in last.columns if isinstance(column, pa.DictionaryArray)]
        assert len(last.column("type").dictionary) == 2 * len(windows)  # with and without a gradient
    assert max(entries) <= 91


def test_equal_numbers_of_different_types_stay_distinct(tmp_path: Path) -> None:
    values = (True, 1, 1.0, False, 0, 0.0, -0.0, True)
    calls = tuple(Call(n, n, -1, "function", ("f",), args=(("x", value),)) for n, value in enumerate(values))
    with TraceWriter(tmp_path, 0, 0) as writer:
        writer.write(Window(0, 0, "train", calls))
        writer.write(Window(1, 0, "train", calls[::-1]))
    first, second = read_windows(writer.path)
    assert repr(first.calls) == repr(calls)
    assert repr(second.calls) == repr(calls[::-1])


def test_text_that_is_no_unicode_is_escaped(tmp_path: Path) -> None:
    call = Call(0, 1, -1, "function", ("f",), site="caf\udce9.py:1:f", args=(("file", "caf\udce9é"),))
    with TraceWriter(tmp_path, 0, 0) as writer:
        writer.write(Window(0, 0, "train", (call,)))
    (window,) = read_windows(writer.path)
    assert window.calls[0].site == r"caf\udce9.py:1:f"
    assert window.calls[0].args == (("file", r"caf\udce9é"),)


def test_text_that_is_no_unicode_is_escaped_in_tensors_and_readings(tmp_path: Path) -> None:
    odd = "caf\udce9é"
    tensor = TensorSummary(odd, odd, (1,), True, odd, facts=((odd, odd), ("norm", 0.5)))
    call = Call(0, 1, NO_CALL, "function", ("f",), tensors=(tensor,))
    reading = Reading(2, NO_CALL, odd, odd, odd, odd, odd, ((odd, odd),))
    with TraceWriter(tmp_path, 0, 0) as writer:
        writer.write(Window(0, 0, "train", (call,), readings=(reading,)))
    (window,) = read_windows(writer.path)
    escaped = r"caf\udce9é"
    assert window.calls[0].tensors == (
        TensorSummary(escaped, escaped, (1,), True, escaped, facts=((escaped, escaped), ("norm", 0.5))),
    )
    assert window.readings == (Reading(2, NO_CALL, escaped, escaped, escaped, escaped, escaped, ((escaped, escaped),)),)


def test_dictionaries_restart_before_they_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ENTRIES_KEPT", 20)
    windows = [
        Window(w, w, "train", tuple(Call(n, n, -1, "function", ("f",), args=(("norm", w * 7 + n),)) for n in range(9)))
        for w in range(60)
    ]
    with TraceWriter(tmp_path, 0, 0) as writer:
        for window in windows:
            writer.write(window)
    assert list(read_windows(writer.path)) == windows
    with pa.ipc.open_stream(writer.path) as stream:
        sizes = [len(batch.column("args").dictionary) for batch in stream]
    assert max(sizes) <= max(20, columns.MAX_WINDOWS * 9) + 9


def test_a_dictionary_is_written_once(tmp_path: Path, windows: list[Window]) -> None:
    sizes = []
    with TraceWriter(tmp_path, 0, 0) as writer:
        for _ in range(4):
            before = writer.bytes_written
            writer.write(windows[1])
            sizes.append(writer.bytes_written - before)
        with pa.ipc.open_stream(writer.path) as stream:
            stream.read_all()
            assert stream.stats.num_dictionary_batches == 17  # one to each dictionary column
    assert sizes[0] > sizes[1] == sizes[2] == sizes[3]


def test_windows_can_be_read_while_the_process_runs(tmp_path: Path, windows: list[Window]) -> None:
    writer = TraceWriter(tmp_path, 0, 0)
    for count, window in enumerate(windows, 1):
        writer.write(window)
        assert list(read_windows(writer.path)) == windows[:count]
    writer.close()
    writer.close()


def test_a_killed_process_loses_no_window_that_was_written(tmp_path: Path, windows: list[Window]) -> None:
    program = f"""
import os, signal
from traincheck.testing.readable_traces import from_text
from traincheck.trace.writer import TraceWriter
writer = TraceWriter({str(tmp_path)!r}, 0, 0)
for window in from_text({TRACE!r}):
    writer.write(window)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode < 0
    assert list(read_windows(tmp_path / "events-0-0.arrows")) == windows


def test_a_forked_child_leaves_the_file_alone(tmp_path: Path, windows: list[Window]) -> None:
    writer = TraceWriter(tmp_path, 0, 0)
    writer.write(windows[0])
    child = os.fork()
    if child == 0:
        try:
            writer.write(windows[1])
        except OutputError:
            writer.close()
            del writer
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    writer.write(windows[1])
    writer.close()
    assert list(read_windows(writer.path)) == windows[:2]


def test_a_full_disk_is_reported_and_ends_the_file(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    program = f"""
import resource
from traincheck.errors import OutputError
from traincheck.testing.readable_traces import from_text
from traincheck.trace.writer import TraceWriter
windows = from_text({TRACE!r})
writer = TraceWriter({str(tmp_path)!r}, 0, 0)
writer.write(windows[0])
resource.setrlimit(resource.RLIMIT_FSIZE, (writer.bytes_written + 1000, resource.RLIM_INFINITY))
for window in windows[1:]:
    try:
        writer.write(window)
    except OutputError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
try:
    writer.write(window)
except OutputError as error:
    print(error)
writer.close()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    path = tmp_path / "events-0-0.arrows"
    expected = f"Cannot write '{path}': File too large."
    assert [line[: len(expected)] for line in done.stdout.splitlines()] == [expected] * 3
    assert list(read_windows(path)) == from_text(TRACE)[:1]


def test_a_folder_that_is_deleted_under_way_is_reported(tmp_path: Path, windows: list[Window]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    writer = TraceWriter(folder, 0, 0)
    writer.write(windows[0])
    writer.path.unlink()
    folder.rmdir()
    for window in windows[1:]:
        with pytest.raises(OutputError, match=r"events-0-0\.arrows': No such file or directory"):
            writer.write(window)
    writer.close()
    assert writer.windows == 1


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path, windows: list[Window]) -> None:
    writer = TraceWriter(tmp_path / "gone", 0, 0)
    with pytest.raises(OutputError, match="No such file or directory"):
        writer.write(windows[0])
    writer.close()


def test_the_file_of_another_process_is_not_overwritten(tmp_path: Path, windows: list[Window]) -> None:
    with TraceWriter(tmp_path, 0, 7) as first:
        first.write(windows[0])
    before = first.path.read_bytes()
    with TraceWriter(tmp_path, 0, 7) as second, pytest.raises(OutputError, match="File exists"):
        second.write(windows[1])
    assert first.path.read_bytes() == before


def test_a_closed_writer_refuses(tmp_path: Path, windows: list[Window]) -> None:
    writer = TraceWriter(tmp_path, 0, 0)
    writer.close()
    with pytest.raises(OutputError, match="closed"):
        writer.write(windows[0])
    assert not writer.path.exists()


@pytest.mark.parametrize("values", [(), ("",), ("a", "", "ä€😀", "torch.nn.Linear")])
def test_texts_match_arrow(values: tuple[str, ...]) -> None:
    made = columns.texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.utf8()))
