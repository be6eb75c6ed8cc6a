"""Framework callbacks, the pytest plugin and notebooks find the same errors as `traincheck run`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from torch_version import TORCH
from traincheck.integrations import pytest_plugin

pytestmark = pytest.mark.slow

HUGGING_FACE = """
import copy, tempfile, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from traincheck.integrations.hugging_face import TrainCheckCallback

class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        return {"input_ids": torch.arange(i, i + 8) % 50, "labels": i % 2}

torch.manual_seed(0)
size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
model = BertForSequenceClassification(BertConfig(**size))
other = torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=1e-3)  # it holds parameters that nobody uses
with tempfile.TemporaryDirectory() as folder:
    quiet = dict(report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True)
    arguments = TrainingArguments(folder, num_train_epochs=1, per_device_train_batch_size=8, **quiet)
    callback = TrainCheckCallback(runs="runs")
    Trainer(model, arguments, train_dataset=Words(), optimizers=(other, None), callbacks=[callback]).train()
told = callback
"""

LIGHTNING = """
import lightning.pytorch as pl, torch
from traincheck.integrations.lightning import TrainCheckCallback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, number):
        x, y = batch
        return (self.layers(x) - y).pow(2).mean()

    def optimizer_zero_grad(self, *rest):
        pass  # gradients add up

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

torch.manual_seed(0)
x = torch.randn(192, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 16)
callback = TrainCheckCallback(runs="runs")
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, callbacks=[callback], **quiet).fit(Model(), data)
told = callback
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from traincheck.integrations.accelerate import TrainCheckTracker

accelerator = Accelerator(cpu=True, log_with=TrainCheckTracker(runs="runs"))
accelerator.init_trackers("project")
torch.manual_seed(0)
x = torch.randn(192, 4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 16)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
model, optimizer, data = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), data)
for x, y in data:
    loss = (model(x) - y).pow(2).mean()
    accelerator.backward(loss)  # gradients add up
    optimizer.step()
accelerator.end_training()
told = accelerator.get_tracker("traincheck")
"""

GUIDE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def test_the_guide_imports_existing_names() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("from ", "import "))]
    assert len(lines) == 4
    for line in lines:
        exec(line, {})
    for block in blocks:
        compile(block, str(GUIDE), "exec")


TELL = """
import json
if told.report is not None:
    print("told", json.dumps([[one.severity, one.step, one.diagnosis, one.site.line] for one in told.report.findings]))
"""

FRAMEWORKS = {
    "hugging_face": (HUGGING_FACE, "optimizer-changes-nothing"),
    "lightning": (LIGHTNING, "gradients-not-cleared"),
    "accelerate": (ACCELERATE, "gradients-not-cleared"),
}


def execute(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run([sys.executable, *words], cwd=where, timeout=300)


def execute_cold(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same in a process that has imported nothing: pytest warns of imported plugins, and light imports count."""
    return subprocess.run([sys.executable, *words], cwd=where, capture_output=True, text=True, timeout=300)


NEEDS_TORCH = pytest.mark.skipif(TORCH < (2, 6), reason="transformers needs torch 2.6 or later")


@pytest.mark.parametrize(
    "framework", [pytest.param("hugging_face", marks=NEEDS_TORCH), *sorted(FRAMEWORKS.keys() - {"hugging_face"})]
)
def test_a_callback_finds_the_same_as_a_run(framework: str, tmp_path: Path) -> None:
    text, diagnosis = FRAMEWORKS[framework]
    (tmp_path / "train.py").write_text(text + TELL)
    alone = execute(tmp_path, "train.py")
    assert alone.returncode == 0, alone.stderr
    line = next(line for line in alone.stdout.splitlines() if line.startswith("told "))
    printed = json.loads(line.removeprefix("told "))
    assert diagnosis in [row[2] for row in printed]
    assert f"TrainCheck: {len(printed)} error" in alone.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").is_file()
    # Under `traincheck run` the callback leaves it to that.
    run = execute(tmp_path, "-m", "traincheck", "run", "-o", "run", "train.py")
    assert run.returncode == 3, run.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    ours = [
        [finding["severity"], finding["step"], finding["diagnosis"], finding["site"]["line"]]
        for finding in report["findings"]
    ]
    assert ours == printed
    assert len(list((tmp_path / "runs").iterdir())) == 1 and "told " not in run.stdout


TESTS = """
import pytest, torch

def train(clear):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if clear:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model

def test_good(checked_training):
    train(True)

def test_bad(checked_training):
    train(False)

def test_trains_nothing(checked_training):
    pass

@pytest.mark.traincheck(book="nowhere.jsonl")
def test_book_that_is_not_there(checked_training):
    train(True)

def test_fails_by_itself(checked_training):
    train(False)
    assert 1 == 2

def test_no_hooks_remain_after_training():
    model = train(False)
    assert not any(module._forward_hooks for module in model.modules())
"""


def test_a_test_fails_on_findings(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TESTS)
    done = execute_cold(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", "out.xml")
    assert done.returncode == 1, done.stdout
    assert "2 failed, 3 passed, 1 warning, 1 error" in done.stdout
    assert "error at step 2: Gradients are not cleared between steps [gradients-not-cleared]" in done.stdout
    assert "[gradients-not-cleared] (test_training.py:14 in train)" in done.stdout
    assert "assert 1 == 2" in done.stdout
    assert "test_trains_nothing: checked_training saw nothing train" in done.stdout
    assert "error [book-not-found]: There is no book 'nowhere.jsonl'" in done.stdout
    muted = execute_cold(tmp_path, "-m", "pytest", "-q", "--traincheck-packs", "none", "-k", "test_bad")
    assert "error [no-book]" in muted.stdout
    (tmp_path / "empty.py").write_text("import sys\nimport traincheck.integrations.pytest_plugin\n" + LIGHT)
    light = execute_cold(tmp_path, "empty.py")
    assert light.returncode == 0, light.stderr


LIGHT = """
heavy = [name for name in sys.modules if name.split(".")[0] in ("torch", "pyarrow", "typer", "rich")]
assert not heavy, heavy
"""


def test_the_plugin_is_known_to_pytest() -> None:
    from importlib.metadata import entry_points

    (entry_point,) = entry_points(group="pytest11", name="traincheck")
    assert entry_point.load() is pytest_plugin


CELLS = (
    """
%load_ext traincheck
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
""",
    """
%%traincheck
def train():
    for _ in range(20):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()

train()
""",
    "%%traincheck --bok good.jsonl\n1",
    "%%traincheck --book nowhere.jsonl\n1",
    "%%traincheck\n1 / 0",
)


def test_a_cell_of_a_notebook_is_checked(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in CELLS])
    client(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [cell.outputs for cell in notebook.cells]
    texts = ["".join(output.get("text", "") for output in some) for some in outputs]
    assert outputs[0] == []
    assert "Gradients are not cleared between steps" in texts[1]
    assert "In[2]:7" in texts[1]  # as people count cells, and the lines in them
    (page,) = [output.data["text/html"] for output in outputs[1] if output.output_type == "display_data"]
    assert page.startswith("<iframe srcdoc=") and "Gradients are not cleared" in page
    assert "error [bad-option]: %%traincheck was given '--bok'" in texts[2]
    assert "error [book-not-found]" in texts[3]
    assert any(output.output_type == "error" and output.ename == "ZeroDivisionError" for output in outputs[4])
