"""Clean programs in common idioms, checked against the packs with the real command: nothing is found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import warm_commands

SOURCE = Path(__file__).resolve().parents[2] / "src"

pytestmark = pytest.mark.slow

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""

DISABLED_SCALER = f"""{TRAINING}
scaler = torch.amp.GradScaler("cpu", enabled=False)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

GRADIENTS_OF_ZEROS = f"""{TRAINING}
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

TRAINED_IMAGE = """
import torch
from torch import nn


class Content(nn.Module):
    def __init__(self, wanted):
        super().__init__()
        self.wanted = wanted.detach()

    def forward(self, x):
        self.loss = nn.functional.mse_loss(x, self.wanted)
        return x


torch.manual_seed(0)
pretrained = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
model, contents = nn.Sequential(), []
content = torch.rand(1, 3, 16, 16)
for place, layer in enumerate(pretrained):
    model.add_module(str(place), layer)
    if isinstance(layer, nn.Conv2d):
        contents.append(Content(model(content)))
        model.add_module(f"content {place}", contents[-1])
image = torch.rand(1, 3, 16, 16, requires_grad=True)
model.eval()
if FROZEN:
    model.requires_grad_(False)
optimizer = OPTIMIZER


def closure():
    optimizer.zero_grad()
    model(image)
    loss = sum(one.loss for one in contents)
    loss.backward()
    return loss


for step in range(60):
    optimizer.step(closure)
"""

BY_LBFGS = TRAINED_IMAGE.replace("FROZEN", "True").replace("OPTIMIZER", "torch.optim.LBFGS([image])")
BY_ADAM = TRAINED_IMAGE.replace("FROZEN", "False").replace("OPTIMIZER", "torch.optim.Adam([image], lr=0.02)")

ADAM_THEN_LBFGS = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
x = torch.linspace(-1, 1, 16)[:, None]


def closure():
    loss = (model(x) - torch.sin(3 * x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    return loss


optimizer = adam = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    optimizer.step(closure)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30, line_search_fn="strong_wolfe")
for step in range(3):
    optimizer.step(closure)
"""

SKIPS_UPDATES = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    x = torch.randn(8, 4)
    try:
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if step == 20:
            raise RuntimeError("no memory is left in the forward")
        if step in (30, 31, 50):
            loss = loss + (model[0].bias * 0).abs().sqrt().sum()  # the derivative of a root at 0
        loss.backward()
        if step == 40:
            raise RuntimeError("no memory is left in the backward")
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad()
    except RuntimeError:
        optimizer.zero_grad()
"""

CALLED_FOR_ITS_SHAPES = f"""{TRAINING}
model = nn.Sequential(nn.LazyLinear(32), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(32, 4))
model(torch.zeros(4, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

WRAPPERS = """
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.reset_parameters()

    def reset_parameters(self):
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x):
        return self.layers[1](self.layers[0](x).relu())


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        inner.reset_parameters()

    def forward(self, x):
        return x + self.inner(x)
"""

USES_WRAPPERS = f"""import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages"))
from mixing import Mixer, Residual
{TRAINING}
model = nn.Sequential(*[Residual(Mixer(8)) for _ in range(3)], nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

LOOK_AT_A_BATCH = f"""{TRAINING}
from torch.utils.data.distributed import DistributedSampler

sampler = DistributedSampler(data, num_replicas=1, rank=0)
loader = DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(3):
    print(len(next(iter(loader))[0]))
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

LIBRARY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 32), nn.Embedding(16, 32)
        self.projections = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 16)
        self.apply(self._initialise)
        for projection in self.projections:
            nn.init.normal_(projection.weight, std=0.01)

    def _initialise(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for projection in self.projections:
            h = h + projection(h).relu()
        return self.head(h)
"""

LIBRARY_ABOVE = """
import torch
from library.model import Net

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    x = torch.randint(16, (8, 6))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x).flatten(0, 1), (x.flatten() + 1) % 16).backward()
    optimizer.step()
"""

SCATTERED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(10):
    torch.manual_seed(step)
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
dist.destroy_process_group()
"""


def findings(folder: Path, *words: str, **more: str) -> list[str]:
    """Titles of what a run that is checked against the packs finds."""
    path = os.pathsep.join(filter(None, (str(SOURCE), more.pop("search", ""))))
    done = warm_commands.run(
        [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "-o", "out", *words],
        cwd=folder,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more},
    )
    assert done.returncode == 0, done.stderr
    assert "not observed a source" not in done.stderr, done.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    return [finding["diagnosis"] for finding in report["findings"]]


@pytest.mark.parametrize(
    "program",
    (
        DISABLED_SCALER,
        GRADIENTS_OF_ZEROS,
        LOOK_AT_A_BATCH,
        BY_LBFGS,
        BY_ADAM,
        ADAM_THEN_LBFGS,
        SKIPS_UPDATES,
        CALLED_FOR_ITS_SHAPES,
    ),
)
def test_clean_idioms_give_no_findings(program: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    assert findings(tmp_path, "train.py") == []


@pytest.mark.parametrize("folder", ["site-packages", "."])
def test_only_project_code_is_reported_for_reused_memory(folder: str, tmp_path: Path) -> None:
    """A wrapper of the library resets what it wraps, which is the library's affair; in the project it is reported."""
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "mixing.py").write_text(WRAPPERS)
    (tmp_path / "train.py").write_text(USES_WRAPPERS)
    assert findings(tmp_path, "train.py") == ([] if folder == "site-packages" else ["weights-initialized-repeatedly"])


@pytest.mark.parametrize("marked", [True, False])
def test_a_library_above_the_script_is_code_of_the_project(marked: bool, tmp_path: Path) -> None:
    library, script = tmp_path / "library", tmp_path / "projects" / "adder"
    library.mkdir()
    script.mkdir(parents=True)
    (library / "__init__.py").touch()
    (library / "model.py").write_text(LIBRARY)
    (script / "adder.py").write_text(LIBRARY_ABOVE)
    if marked:
        (tmp_path / "setup.py").touch()
    assert findings(script, "adder.py", search=str(tmp_path)) == []


def test_parts_that_a_scatter_hands_out_differ(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCATTERED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert findings(tmp_path, "--", *launcher, "train.py") == []
