"""The description of a backward's graph: what changes a line, and what must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from observed_process import observing
from torch_version import reports_graph_details
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import LIVE, UNSETTLED

NEEDS_GRAPH_DETAILS = pytest.mark.skipif(not reports_graph_details(), reason="this torch reports no dtypes and numbers")
GRAPH = Demand.of_calls("torch.autograd.backward") | Demand.of_readings("graph.operations", "graph.numbers")


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5).softmax(-1)
        return x + self.dropout(self.mix(scores @ self.norm(x)))


class Net(nn.Module):
    def __init__(self, width: int = 8, depth: int = 3, block: type[Block] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Lines = dict[tuple[str, str], list[str]]


def described(net: nn.Module, loss: Loss = cross_entropy, batch: int = 6, width: int = 8, length: int = 5) -> Lines:
    """The lines of one backward by attribute and variable, without the line about torch and device."""
    with observing(GRAPH) as seen:
        loss(net(torch.randn(batch, length, width)), torch.arange(batch) % 4).backward()
    assert seen.faults == []
    found: Lines = {}
    for reading in seen.readings:
        if reading.kind == "graph":
            found.setdefault((reading.attribute, reading.variable), []).extend(str(reading.value).split("\n")[1:])
    return found


def test_each_operation_is_described_by_what_it_takes() -> None:
    lines = described(Net())
    assert lines["operations", "Net.blocks.0"] == ["add <- -, dropout", "bmm <- -, norm"]  # its input has no gradient
    second = lines["operations", "Net.blocks.1"]
    assert "softmax(dim=-1) <- div" in second and "div <- bmm, -" in second and "add <- blocks.*, dropout" in second
    assert lines["operations", "Net.blocks.0.norm"] == ["native_layer_norm <- -, weight, bias"]
    assert lines["operations", "Net"] == ["mean(dim=[1], keepdim=False) <- blocks.*"]
    assert lines["operations", "program"][-1].startswith("nll_loss(reduction=1")
    assert "loss <- nll_loss" in lines["operations", "program"]


def test_equal_modules_are_described_once() -> None:
    lines = described(Net(depth=6))
    assert {path for _, path in lines if "norm" in path} == {"Net.blocks.0.norm", "Net.blocks.1.norm"}
    assert lines["operations", "Net.blocks.1.norm"] == ["native_layer_norm <- blocks.*, weight, bias"]


@pytest.mark.parametrize("sizes", [{"batch": 3}, {"length": 9}, {"batch": 2, "length": 2}])
def test_other_sizes_give_the_same_lines(sizes: dict[str, int]) -> None:
    assert described(Net(), **sizes) == described(Net())


def test_another_width_and_depth_give_the_same_lines() -> None:
    assert described(Net(16, depth=4), width=16) == described(Net())


class WithoutResidual(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5).softmax(-1)
        return self.dropout(self.mix(scores @ self.norm(x)))


class OverTheQueries(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5).softmax(-2)
        return x + self.dropout(self.mix(scores @ self.norm(x)))


class NotScaled(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(-2, -1)).softmax(-1)
        return x + self.dropout(self.mix(scores @ self.norm(x)))


class Detached(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


@pytest.mark.parametrize("block", [WithoutResidual, OverTheQueries, NotScaled, Detached])
def test_another_computation_changes_lines_of_its_module(block: type[Block]) -> None:
    right, wrong = (
        {line for (_, path), lines in net.items() if path.startswith("Net.blocks") for line in lines}
        for net in (described(Net()), described(Net(block=block)))
    )
    assert (wrong - right) if block is not Detached else (right - wrong)


def test_one_layer_of_many() -> None:
    net = Net()
    net.blocks[1] = NotScaled(8)
    lines = described(net)
    assert "softmax(dim=-1) <- bmm" in lines["operations", "Net.blocks.1"]
    assert "softmax(dim=-1) <- bmm" not in lines["operations", "Net.blocks.0"]


@pytest.mark.parametrize(
    ("loss", "new"),
    [
        (lambda x, y: F.cross_entropy(x.softmax(-1), y), "log_softmax(dim=1) <- softmax"),
        (lambda x, y: F.cross_entropy(x, y, reduction="sum"), "nll_loss(reduction=2, without weight) <- log_softmax"),
        (lambda x, y: F.cross_entropy(x, y, torch.ones(x.shape[1])), "nll_loss(reduction=1) <- log_softmax"),
        (lambda x, y: -F.cross_entropy(x, y), "loss <- neg"),
        (lambda x, y: F.cross_entropy(x, y) + 0 * x.sum(), "loss <- add"),
        pytest.param(
            lambda x, y: F.cross_entropy(x.bfloat16(), y),
            "nll_loss(reduction=1, without weight) bfloat16 <- log_softmax",
            marks=NEEDS_GRAPH_DETAILS,
        ),
    ],
)
def test_another_loss_changes_lines_of_the_program(loss: Loss, new: str) -> None:
    assert new in described(Net(), loss)["operations", "program"]
    assert new not in described(Net())["operations", "program"]


@NEEDS_GRAPH_DETAILS
def test_numbers_are_described_apart() -> None:
    lines = described(Net(), lambda x, y: 0.3 * F.cross_entropy(x, y))
    assert lines["numbers", "program"] == ["mul.other=0.3"]
    assert ("numbers", "Net.blocks.1") not in lines, "the square root of a width may be a size"


def test_frozen_parameters_show() -> None:
    net = Net()
    net.head.weight.requires_grad_(False)
    (line,) = [line for line in described(net)["operations", "Net.head"] if line.startswith("addmm")]
    assert line == "addmm <- bias, Net, -"


def test_saved_tensors_are_not_read() -> None:
    """A saved tensor that is read starts the recomputation of a checkpoint, or a copy back from another device."""
    read = []

    def unpack(kept: torch.Tensor) -> torch.Tensor:
        read.append(kept)
        return kept

    net = Net()
    with observing(GRAPH) as seen, torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, unpack):
        loss = net(torch.randn(2, 5, 8)).sum()
        before = len(read)
        with torch.no_grad():
            seen_before = len(seen.readings)
        loss.backward()
    alone: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: (alone.append(kept), kept)[1]):
        net(torch.randn(2, 5, 8)).sum().backward()
    assert before == 0 and len(read) == len(alone) and len(seen.readings) >= seen_before


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints(reentrant: bool) -> None:
    net = Net()
    with observing(GRAPH) as seen:
        x = torch.randn(2, 5, 8, requires_grad=True)
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    assert seen.faults == []
    assert [reading for reading in seen.readings if reading.kind == "graph"]


def test_equal_graphs_are_reported_once() -> None:
    net = Net()
    with observing(GRAPH) as seen:
        for _ in range(30):
            cross_entropy(net(torch.randn(6, 5, 8)), torch.arange(6) % 4).backward()
    keys = [
        (reading.variable, reading.attribute, reading.value) for reading in seen.readings if reading.kind == "graph"
    ]
    assert len(keys) == len(set(keys)) and seen.faults == []


def test_a_graph_that_changes_late_is_described() -> None:
    net = Net()
    with observing(GRAPH) as seen:
        for step in range(60):
            logits = net(torch.randn(6, 5, 8))
            loss = cross_entropy(logits, torch.arange(6) % 4)
            (loss + logits.square().mean() if step >= 50 else loss).backward()
    operations = [str(r.value) for r in seen.readings if (r.attribute, r.variable) == ("operations", "program")]
    assert ["loss <- add" in text for text in operations] == [False, True]


def roles_of_late_graphs(penalized: Callable[[int], bool]) -> list[str]:
    """The roles of the descriptions of a loss that has a penalty in some of 40 backwards."""
    net = Net()
    with observing(GRAPH) as seen:
        for step in range(40):
            logits = net(torch.randn(6, 5, 8))
            loss = cross_entropy(logits, torch.arange(6) % 4)
            (loss + logits.square().mean() if penalized(step) else loss).backward()
    found = [reading for reading in seen.readings if (reading.attribute, reading.variable) == ("operations", "program")]
    return [reading.role for reading in found if "loss <- add" in str(reading.value)]


def test_a_branch_that_the_data_choose_is_unsettled() -> None:
    assert roles_of_late_graphs(lambda step: step in (20, 30)) == [UNSETTLED]
    assert roles_of_late_graphs(lambda step: step >= 20) == [LIVE]
    assert roles_of_late_graphs(lambda step: step in (20, 30) or step >= 35) == [UNSETTLED, LIVE]
    assert roles_of_late_graphs(lambda step: step % 6 == 5) == [LIVE]  # it takes turns from the beginning


def test_the_first_forward_after_a_gap_has_its_operations() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with observing(EVERYTHING, watches=lambda step: step % 4 == 0) as seen:
        for _ in range(9):
            optimizer.zero_grad()
            cross_entropy(net(torch.randn(6, 5, 8)), torch.arange(6) % 4).backward()
            optimizer.step()
    assert [window.step for window in seen.windows if window.stage == "train"] == [4, 8]
    of_program = {str(r.value) for r in seen.readings if (r.attribute, r.variable) == ("operations", "program")}
    assert [text.split("\n")[1:] for text in of_program] == [described(net)["operations", "program"]]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * grad


def test_functions_of_the_program_keep_their_names() -> None:
    lines = described(Net(), lambda x, y: F.cross_entropy(Double.apply(x), y))
    assert "log_softmax(dim=1) <- Double" in lines["operations", "program"]


class Attending(nn.Module):
    """Attends by a mask over scores of which `hidden` is left out; the way in which it does so varies."""

    def __init__(self, way: str, hidden: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table, self.way, self.hidden = nn.Embedding(9, 8), way, hidden

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        hidden = self.hidden(torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool))
        if self.way == "sdpa":
            return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=~hidden)[:, 0]
        scores = x @ x.transpose(1, 2)
        scores = torch.where(hidden, -1e9, scores) if self.way == "where" else scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ x


def numbers(net: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> set[str]:
    """What one backward says of masks and targets."""
    with observing(GRAPH) as seen:
        logits = net(tokens)[:, : targets.shape[1]]
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    assert seen.faults == []
    lines = [
        line for reading in seen.readings if reading.attribute == "numbers" for line in str(reading.value).split("\n")
    ]
    return {line for line in lines if ".mask=" in line or ".target=" in line}


@NEEDS_GRAPH_DETAILS
@pytest.mark.parametrize("way", ["fill", "where", "sdpa"])
@pytest.mark.parametrize(
    ("hidden", "form"),
    [
        (lambda square: square.triu(1), "triangle 1"),
        (lambda square: square.triu(0), "triangle 0"),
        (lambda square: square.triu(2), "triangle 2"),
        (lambda square: square.triu(1) | square.tril(-3), "another"),
    ],
)
def test_the_form_of_a_mask(way: str, hidden: Callable[[torch.Tensor], torch.Tensor], form: str) -> None:
    for batch, length in ((1, 6), (3, 7)):
        tokens = torch.randint(0, 8, (batch, length))
        (mask,) = {line for line in numbers(Attending(way, hidden), tokens, tokens) if ".mask=" in line}
        assert mask.endswith(f"mask={form}")


@pytest.mark.parametrize("batch", [1, 4])
def test_the_tokens_that_a_loss_expects(batch: int) -> None:
    net = Attending("fill", lambda square: square.triu(1))
    tokens = torch.randint(0, 8, (batch, 40))
    padded = torch.cat((tokens[:, 1:], torch.full((batch, 1), -100)), 1)
    for targets, name in (
        (tokens, "the tokens of the input"),
        (tokens[:, 1:], "the next tokens of the input"),
        (padded, "the next tokens of the input"),
        (tokens[:, 2:], "the second next tokens of the input"),
        (tokens.flip(1), "other tokens than the input"),
    ):
        found = {line for line in numbers(net, tokens, targets) if ".target=" in line}
        assert found == {f"nll_loss.target={name}"}
    short = numbers(net, tokens[:, :3], tokens[:, :3])
    assert not {line for line in short if ".target=" in line}, "in a short sequence several forms are the same"


class Mixing(nn.Module):
    """Multiplies transposed rows, which torch does in one way or another, depending on the shape."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.mix.bias.requires_grad_(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x.transpose(0, 1).contiguous().transpose(0, 1)).mean(1)


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_is_added_in_one_operation_or_in_two(bias: bool) -> None:
    several, one = (described(Mixing(bias), batch=batch) for batch in (6, 1))
    assert several == one
    assert any(line.startswith("addmm <- ") for line in several["operations", "Mixing.mix"])
