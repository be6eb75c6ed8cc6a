"""Trainings in which tensors of every kind meet all that can be observed: each way trains with one kind of tensor as
buffer, argument, result, batch, optimizer state and operand, or with parameters and gradients of that kind.

Each way prints a line with what it computed. The arguments name the ways to run; without any all are run. With the
argument `unended` the process group is still there when the interpreter exits.
"""

import contextlib
import copy
import gc
import io
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

STEPS = 4


class Wrapper(torch.Tensor):
    """A subclass without memory that wraps another tensor and computes on it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Wrapper({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def inner(value):
            return value.inner if isinstance(value, cls) else value

        result = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            return cls(result)
        if func.__name__.split(".")[0].endswith("_") and args and isinstance(args[0], cls):
            return args[0]
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, result)


class WithMemory(torch.Tensor):
    """A subclass with memory and a dispatch method that counts its calls."""

    dispatched = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.dispatched += 1
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


class Strict(torch.Tensor):
    """Refuses every operation."""

    @staticmethod
    def __new__(cls, size):
        return torch.Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} is refused")


class Functions(torch.Tensor):
    """An ordinary subclass, with `__torch_function__` only."""


def shrunk(tensor):
    """The memory behind it has become smaller than the tensor."""
    tensor.untyped_storage().resize_(8)
    return tensor


def freed():
    tensor = torch.ones(70000)
    tensor.untyped_storage().resize_(0)
    return tensor


def escaped(transform):
    """Tensors of a function transform, stored beyond its end."""
    tensors = []
    transform(lambda x: (tensors.append(x), (x * 2).sum())[1])(torch.ones(3, 2))
    return tensors[0]


def large(kind):
    """A tensor large enough to be sampled."""
    return kind(torch.ones(300, 300))


KINDS = {
    "wrapper": lambda: Wrapper(torch.ones(4)),
    "large_wrapper": lambda: large(Wrapper),
    "with_memory": lambda: torch.ones(4).as_subclass(WithMemory),
    "strict": lambda: Strict(4),
    "large_strict": lambda: Strict(90000),
    "functions": lambda: torch.ones(4).as_subclass(Functions),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(4)),
    "large_fake": lambda: FakeTensorMode().from_tensor(torch.ones(300, 300)),
    "functional": lambda: torch._to_functional_tensor(torch.ones(4)),
    "meta": lambda: torch.ones(4, device="meta"),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "compressed": lambda: torch.eye(4).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(4, 4).to_mkldnn(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "masked": lambda: torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True])),
    "freed": freed,
    "shrunk": lambda: shrunk(torch.ones(300, 300)),
    "shrunk_view": lambda: shrunk(torch.ones(300, 300).t()),
    "batched": lambda: escaped(torch.vmap),
    "differentiated": lambda: escaped(torch.func.grad),
    "expanded": lambda: torch.ones(1).expand(300, 300),
    "overlapping": lambda: torch.ones(10).as_strided((5, 5), (1, 1)),
    "conjugated": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(4, dtype=torch.complex64).conj().imag,
    "eight_bits": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "empty": lambda: torch.ones(0),
    "lazy": lambda: nn.LazyLinear(3).weight,
}


GONE = ("freed", "shrunk", "shrunk_view")
"""Kinds that the program itself must not read: what is behind them is gone."""


class Carries(nn.Module):
    """Hands on a tensor of some kind next to what it computes."""

    def forward(self, x, other):
        return x, other


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.carries = Carries()
        self.register_buffer("kind", kind, persistent=False)

    def forward(self, x, other):
        x, self.kind = self.carries(torch.tanh(self.first(x)), other)
        return self.last(x)


def operate(kind):
    """Return the torch functions and methods, also in-place ones, that work with the tensor."""
    done = 0
    for operation in (torch.abs, torch.sum, torch.zeros_like, lambda t: t + t, lambda t: t.mul_(1), lambda t: t.clone(),
                      lambda t: t.view(-1), lambda t: torch.cat([t, t]), F.relu, lambda t: t.size(0)):  # fmt: skip
        try:
            operation(kind)
        except Exception:
            continue
        done += 1
    return done


def carried(make, readable):
    """Train a plain model which meets a tensor of this kind wherever one can be."""
    kind = make()
    model = Net(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = [(torch.randn(8), torch.tensor(number % 3)) for number in range(STEPS * 4)]

    def collate(rows):
        return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]), make()

    losses, worked = [], 0
    for x, y, other in DataLoader(samples, batch_size=4, collate_fn=collate):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, other), y)
        loss.backward()
        optimizer.step()
        optimizer.state[model.last.bias]["kind"] = other
        worked += operate(other) if readable else 0
        losses.append(loss.item())
    with contextlib.suppress(Exception):
        torch.save({"kind": kind if readable else None, "model": model.state_dict()}, io.BytesIO())
    model.eval()
    with torch.no_grad():
        losses.append(model(torch.ones(2, 8), kind).sum().item())
    return losses, worked


def train(model, optimizer, x=None, steps=STEPS):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 8) if x is None else x).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach().full_tensor() if hasattr(loss, "full_tensor") else loss.detach()))
    return losses


def rate_of(rate):
    """Trains with DTensors as parameters; with such a rate nothing changes, and it is asked why."""

    def sharded():
        from torch.distributed.fsdp import fully_shard

        model = nn.Sequential(nn.Linear(8, 300), nn.LayerNorm(300), nn.Linear(300, 300), nn.Linear(300, 2))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        losses = train(model, optimizer)
        return losses, [parameter.to_local().double().sum().item() for parameter in model.parameters()]

    return sharded


def emptied():
    """Parameters that were built without memory and never filled, except some; not one of them changes."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter.to_local(), float("nan"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return [loss != loss for loss in train(model, optimizer)]


def parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    mesh = init_device_mesh("cpu", (1,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def wrapped():
    """Parameters, and with them gradients and optimizer state, have no memory of their own."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
    for layer in model:
        layer.weight = nn.Parameter(Wrapper(layer.weight.detach().clone()))
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 8)).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for layer in model:
                layer.weight.inner -= 0.1 * layer.weight.grad.inner if isinstance(layer.weight.grad, Wrapper) else 0
        losses.append(float(loss.detach().inner if isinstance(loss, Wrapper) else loss.detach()))
    return losses


def sparse_gradients():
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2))
    sparse = torch.optim.SparseAdam(model[0].parameters(), lr=0.01)
    dense = torch.optim.Adam(model[1].parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        loss = model(torch.tensor([[step, 3, 5]])).pow(2).mean()
        loss.backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def transformed():
    """Gradients for each sample by vmap over grad, with a module called inside."""
    model = nn.Linear(8, 1)
    weights = dict(model.named_parameters())

    def loss(own, x):
        return torch.func.functional_call(model, own, (x,)).pow(2).sum()

    per_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        gradients = per_sample({name: value.detach() for name, value in weights.items()}, torch.randn(4, 8))
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()
    return model.weight.sum().item()


def in_a_dispatch():
    """Modules are called, and steps taken, while the program has switched dispatch off."""
    model = nn.Linear(8, 2)
    model.register_buffer("kind", Wrapper(torch.ones(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch._C._DisableTorchDispatch():
        losses = train(model, optimizer)
    return losses


def modules_die():
    """Modules, parameters and optimizers die in hooks, in the midst of forward, backward and step."""
    losses = []
    for _ in range(STEPS):
        layers = {"old": nn.Linear(8, 8)}
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def dies(module, *_, layers=layers):
            layers.pop("old", None)
            gc.collect()

        def loses_child(module, *_):
            module._forward_hooks.clear()
            gc.collect()

        model[0].register_forward_hook(dies)
        model[1].register_forward_pre_hook(lambda module, args: None)
        model[1].register_forward_hook(loses_child)
        model[1].register_full_backward_hook(lambda *_, m=model: (m.__dict__.pop("gone", None), gc.collect(), None)[2])
        loss = (model(torch.randn(4, 8)) + layers.get("old", nn.Linear(8, 2)).weight.sum()).pow(2).mean()
        loss.backward()
        optimizer.register_step_post_hook(lambda *_, m=model: (m.__delitem__(1) if len(m) > 1 else None, gc.collect()))
        optimizer.step()
        losses.append(loss.item())
        del model, optimizer
        gc.collect()
    return losses


def copied():
    """Deep copies of a model that carries a wrapper."""
    model = nn.Sequential(nn.Linear(8, 2))
    model.register_buffer("kind", Wrapper(torch.ones(4)))
    return train(copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1))


def compiled_autograd():
    """The backward, with the hooks in it, is traced and compiled as well."""
    from torch._dynamo import compiled_autograd

    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
        losses = train(model, optimizer)
    return [round(loss, 5) for loss in losses]


WAYS = {name: (lambda make=make, observed=name not in GONE: carried(make, observed)) for name, make in KINDS.items()}
WAYS |= {
    "sharded": rate_of(0.01),
    "sharded_at_rest": rate_of(0.0),
    "sharded_lost": rate_of(1e-30),
    "emptied": emptied,
    "parallel": parallel,
    "wrapped": wrapped,
    "sparse_gradients": sparse_gradients,
    "transformed": transformed,
    "in_a_dispatch": in_a_dispatch,
    "modules_die": modules_die,
    "copied": copied,
    "compiled_autograd": compiled_autograd,
}


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name, way in WAYS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        WithMemory.dispatched = 0
        try:
            outcome = way()
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error)[:80]}"
        print("WAY", name, outcome, WithMemory.dispatched, torch.get_rng_state().sum().item(), flush=True)
    if "unended" not in sys.argv:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
