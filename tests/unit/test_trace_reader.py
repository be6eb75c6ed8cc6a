"""The reader reads torn files up to the tear, and reports other errors with the file name."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from traincheck.errors import InputError, TraceOutOfReach, TraceTooNew, TraceUnreadable
from traincheck.testing.readable_traces import from_text
from traincheck.trace.format import FORMAT
from traincheck.trace.growing_files import GrowingFile
from traincheck.trace.reader import count_windows, read_windows
from traincheck.trace.schema import schema
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Window

TRACE = """
window setup
window train step=1
  module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.fc context={"training":true}
    tensor input float32[4,8] storage=~1 fingerprint=3 facts={"finite":true,"norm":1.5}
    tensor result float32[4,2] requires_grad storage=~2
    reading module.training Net true
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD site=train.py:8:main
    change Net.fc.weight parameter.data some -> some changed owner=SGD fingerprint=7
window train step=2
  module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.fc context={"training":false}
  lifecycle torch.optim.AdamW.step < torch.optim.Optimizer.step receiver=AdamW
"""

FORMAT_1 = Path(__file__).with_name("trace-format-1.arrows")
"""Written by TrainCheck before it knew of tensors and readings."""
TRACE_OF_FORMAT_1 = """
window setup
window train step=1
  module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.fc context={"training":true} \
result={"dtype":"float32"}
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD site=train.py:8:main args={"lr":0.5}
    change Net.fc.weight parameter.data some -> some changed owner=SGD fingerprint=7
window end step=1
"""


def write(folder: Path, windows: list[Window]) -> tuple[Path, list[int]]:
    """The event file of `windows`, and its size after each of them."""
    sizes = []
    with TraceWriter(folder, 0, 0) as writer:
        for window in windows:
            writer.write(window)
            sizes.append(writer.bytes_written)
    return writer.path, sizes


def test_a_file_torn_at_any_byte_gives_the_windows_before(tmp_path: Path) -> None:
    windows = from_text(TRACE)
    path, sizes = write(tmp_path, windows)
    data = path.read_bytes()
    torn = tmp_path / "torn.arrows"
    near = {at for size in (0, *sizes, len(data)) for at in range(max(0, size - 12), min(len(data), size + 12))}
    for cut in sorted(near | set(range(0, len(data), 61))):
        torn.write_bytes(data[:cut])
        assert list(read_windows(torn)) == windows[: sum(size <= cut for size in sizes)], cut


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_is_no_error(tmp_path: Path) -> None:
    windows = from_text(TRACE)
    path, sizes = write(tmp_path, windows)
    path.write_bytes(path.read_bytes()[: sizes[1]] + bytes(4096))
    assert list(read_windows(path)) == windows[:2]


def test_windows_are_built_lazily(tmp_path: Path) -> None:
    windows = from_text(TRACE)
    path, sizes = write(tmp_path, windows)
    path.write_bytes(path.read_bytes()[: sizes[1]] + b"\xff" * 4 + b"garbled and much more" * 99)
    assert list(islice(read_windows(path), 2)) == windows[:2]


def test_equal_facts_and_levels_are_one_object(tmp_path: Path) -> None:
    path, _ = write(tmp_path, from_text(TRACE))
    _, first, second = read_windows(path)
    assert first.calls[0].levels is second.calls[0].levels
    assert first.calls[1].context is second.calls[1].context


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04 and so on", b"{}\n", b"ARROW1\0\0"])
def test_a_file_that_is_not_arrow_is_reported_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events-0-1.arrows"
    path.write_bytes(content)
    with pytest.raises(TraceUnreadable, match=r"events-0-1\.arrows' is damaged or was changed: .* not an Arrow"):
        list(read_windows(path))


def test_an_empty_file_has_no_windows(tmp_path: Path) -> None:
    path = tmp_path / "events-0-1.arrows"
    path.touch()
    assert list(read_windows(path)) == []


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceOutOfReach, match=r"nowhere\.arrows' cannot be read: No such file or directory"):
        list(read_windows(tmp_path / "nowhere.arrows"))
    with pytest.raises(TraceOutOfReach):
        list(read_windows(tmp_path))


def stream_of(path: Path, arrow_schema: pa.Schema) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, arrow_schema):
        return path


def test_another_arrow_stream_is_reported(tmp_path: Path) -> None:
    path = stream_of(tmp_path / "x.arrows", pa.schema([("a", pa.int32())]))
    with pytest.raises(TraceUnreadable, match="not of events"):
        list(read_windows(path))


def test_a_newer_format_is_reported(tmp_path: Path) -> None:
    columns = schema(0, 0)
    path = stream_of(tmp_path / "x.arrows", columns.with_metadata({**columns.metadata, b"traincheck.format": b"99"}))
    with pytest.raises(TraceTooNew, match=f"trace format 99; this TrainCheck reads up to {FORMAT}"):
        list(read_windows(path))


@pytest.mark.parametrize("field", [b"traincheck.format", b"traincheck.rank"])
def test_a_header_that_was_tampered_with_is_reported(tmp_path: Path, field: bytes) -> None:
    columns = schema(0, 0)
    path = stream_of(tmp_path / "x.arrows", columns.with_metadata({**columns.metadata, field: b"?"}))
    with pytest.raises(TraceUnreadable):
        list(read_windows(path))


def test_a_missing_column_is_reported_and_a_further_one_is_passed_over(tmp_path: Path) -> None:
    columns = schema(0, 0)
    path = stream_of(tmp_path / "x.arrows", columns.remove(columns.get_field_index("site")))
    with pytest.raises(TraceUnreadable, match="no proper column 'site'"):
        list(read_windows(path))
    path = stream_of(tmp_path / "y.arrows", columns.append(pa.field("more", pa.int8())))
    assert list(read_windows(path)) == []


def test_garbled_bytes_raise_nothing_but_input_errors(tmp_path: Path) -> None:
    windows = from_text(TRACE)
    path, _ = write(tmp_path, windows)
    data = path.read_bytes()
    generator = random.Random(0)
    refused = 0
    for _ in range(300):
        garbled = bytearray(data)
        garbled[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(garbled)
        try:
            list(read_windows(path))
        except InputError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


def test_a_file_of_format_1_is_read(tmp_path: Path) -> None:
    windows = from_text(TRACE_OF_FORMAT_1)
    assert list(read_windows(FORMAT_1)) == windows
    assert count_windows(FORMAT_1) == len(windows)


def test_a_column_of_format_2_may_be_missing_in_format_1_only(tmp_path: Path) -> None:
    columns = schema(0, 0)
    path = stream_of(tmp_path / "x.arrows", columns.remove(columns.get_field_index("tensors")))
    with pytest.raises(TraceUnreadable, match="no proper column 'tensors'"):
        list(read_windows(path))


def test_windows_are_counted_up_to_a_tear(tmp_path: Path) -> None:
    path, sizes = write(tmp_path, from_text(TRACE))
    data = path.read_bytes()
    for cut, expected in ((0, 0), (sizes[0] - 1, 0), (sizes[1], 2), (sizes[1] + 40, 2), (len(data), 3)):
        path.write_bytes(data[:cut])
        assert count_windows(path) == expected
    path.write_bytes(data[: sizes[0]] + b"\xff" * 4 + b"garbled")
    assert count_windows(path) == 1
    with pytest.raises(TraceOutOfReach):
        count_windows(tmp_path / "nowhere.arrows")


def test_reading_needs_no_torch() -> None:
    program = "import sys, traincheck.trace.folder, traincheck.trace.writer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_growing_file_that_cannot_be_opened_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(FileNotFoundError):
        GrowingFile(tmp_path / "missing", lambda: True)
    gc.collect()
    assert ignored == []
