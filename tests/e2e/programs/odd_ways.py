"""Trains in odd ways, one after the other; each tells in a line what it computed, to the last bit.

python odd_ways.py [name ...]
"""

import asyncio
import copy
import functools
import gc
import hashlib
import importlib
import io
import multiprocessing
import os
import pickle
import random
import runpy
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
import types
import warnings
import weakref
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

WAYS = []


def way(function):
    WAYS.append(function)
    return function


def digest(*things):
    """The content of tensors, modules and numbers, in a few characters."""
    hasher = hashlib.sha256()
    for value in things:
        if isinstance(value, nn.Module):
            value = list(value.state_dict().values())
        if isinstance(value, (list, tuple)):
            hasher.update(digest(*value).encode())
        elif isinstance(value, torch.Tensor):
            dense = value.detach().contiguous()
            hasher.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
            hasher.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            hasher.update(repr(value).encode())
    return hasher.hexdigest()[:12]


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def train(model=None, steps=4, after_step=lambda step: None, kind=torch.optim.Adam, seed=0):
    """A digest of what came of the training."""
    model = net(seed) if model is None else model
    optimizer = kind((p for p in model.parameters() if p.requires_grad), lr=0.01)
    draws = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(steps):
        x = torch.randn(8, 4, generator=draws)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after_step(step)
    return digest(model, losses)


# -- processes and threads -------------------------------------------------------------------------------------------


def put_trained(end):
    end.send(train(seed=5))
    end.close()


@way
def forked():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.closerange(write + 1, 256)  # as daemons do; what was open there is somebody else's
        os.write(write, train(seed=3).encode())
        os._exit(7)
    os.close(write)
    sent = os.read(read, 100).decode()
    os.close(read)
    return sent, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), train(seed=3) == sent


@way
def started():
    results = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        mine, theirs = context.Pipe()
        child = context.Process(target=put_trained, args=(theirs,))
        child.start()
        results.append(mine.recv())
        child.join()
        results.append(child.exitcode)
    return results


@way
def loaders():
    batches = []
    data = TensorDataset(torch.arange(24.0).reshape(12, 2))
    for context, persistent in (("fork", True), ("fork", False), ("forkserver", True)):
        torch.manual_seed(1)
        loader = DataLoader(
            data,
            batch_size=3,
            shuffle=True,
            num_workers=2 if context == "fork" else 1,
            multiprocessing_context=context,
            persistent_workers=persistent,
        )
        batches += [batch[0] for _ in range(2) for batch in loader]
    return digest(batches)


@way
def in_threads():
    results = {}

    def work(name, model):
        results[name] = train(model, steps=8)

    alone = threading.Thread(target=work, args=("alone", net(1)))
    alone.start()
    alone.join()
    both = [threading.Thread(target=work, args=(f"both{n}", net(n))) for n in (2, 3)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    return sorted(results.items())


# -- signals ---------------------------------------------------------------------------------------------------------


@way
def signals():
    events, model = [], net()
    before = signal.signal(signal.SIGUSR1, lambda *_: events.append(len(model.state_dict())))
    trained = train(model, after_step=lambda step: os.kill(os.getpid(), signal.SIGUSR1))
    signal.signal(signal.SIGUSR1, before)

    def leave(number, frame):
        raise SystemExit(number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        train(after_step=lambda step: os.kill(os.getpid(), signal.SIGTERM))
    except SystemExit as end:
        events.append(end.code)
    signal.signal(signal.SIGTERM, before)
    try:
        train(after_step=lambda step: os.kill(os.getpid(), signal.SIGINT))
    except KeyboardInterrupt:
        events.append("interrupted")
    return trained, events, train()


@way
def signals_waited_for():
    """Blocked here and requested later: no other thread may take it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    os.kill(os.getpid(), signal.SIGUSR2)
    trained = train()
    pending = signal.SIGUSR2 in signal.sigpending()
    received = signal.sigwait({signal.SIGUSR2}) if pending else None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    return trained, pending, received == signal.SIGUSR2


@way
def alarms():
    """A handler that evaluates and saves, wherever the training is."""
    probe = net(9).eval()
    seen = []

    def look(number, frame):
        with torch.no_grad():
            seen.append(probe(torch.ones(2, 4)).sum().item())
        torch.save(probe.state_dict(), io.BytesIO())

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.05)
    model = net()
    trained = train(model, steps=20)
    while not seen:
        time.sleep(0.001)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return trained, set(seen)


@way
def interrupted():
    """Ctrl-C in a forward, in a backward and in a data set, and on it goes, as in a notebook."""

    class Stops(nn.Linear):
        where = ""

        def forward(self, x):
            if self.where == "forward":
                raise KeyboardInterrupt
            x = super().forward(x)
            if self.where == "backward":
                x.register_hook(self.stop)
            return x

        def stop(self, gradient):
            raise KeyboardInterrupt

    states = []
    for where in ("forward", "backward"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Stops(4, 2))
        model[1].where = where
        try:
            train(model)
        except KeyboardInterrupt:
            model[1].where = ""
        states += [train(model), torch.is_grad_enabled()]
    return states


# -- copies and files ------------------------------------------------------------------------------------------------

MODULE = """
from torch import nn
class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)
    def forward(self, x):
        return self.inner(x) * {factor}
"""


@way
def reloaded():
    results = []
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        try:
            for factor in (1, 2):
                Path(folder, "odd_model.py").write_text(MODULE.format(factor=factor) + "#" * factor)
                importlib.invalidate_caches()
                loaded = sys.modules.get("odd_model")
                module = importlib.reload(loaded) if loaded else importlib.import_module("odd_model")
                torch.manual_seed(0)
                results.append(train(module.Mine()))
        finally:
            sys.path.remove(folder)
            sys.modules.pop("odd_model", None)
    return results


@way
def copies():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    loaded, _ = torch.load(file, weights_only=False)
    both = copy.deepcopy((model, optimizer))
    both[1].step()
    others = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model), loaded]
    names = [type(other).__name__ for other in others]
    return names, digest(averaged, both[0], *others), [train(other) for other in others]


@way
def attributes():
    """What lies on the program's own objects."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model)
    names = [sorted(vars(module)) for module in model.modules()]
    names += [sorted(vars(parameter)) for parameter in model.parameters()]
    names.append(sorted(vars(optimizer)))
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    return digest(names), gone() is None


# -- compilers and transforms ----------------------------------------------------------------------------------------


@way
def scripted():
    def force(x: torch.Tensor):
        energy = (x * x * x).sum()
        grads = torch.autograd.grad([energy], [x], create_graph=True)[0]
        assert grads is not None
        return grads

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [torch.jit.script(force)(torch.ones(3, requires_grad=True))]
        torch.manual_seed(0)
        model = torch.jit.script(nn.Sequential(nn.Linear(4, 2)))
        results.append(train(model))
        torch.manual_seed(0)
        traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 2)), torch.ones(2, 4))
        results.append(train(traced))
    return digest(results)


@way
def transformed():
    model = net().eval()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).sum()

    x = torch.arange(12.0).reshape(3, 4)
    per_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    jacobian = torch.func.jacrev(lambda x: model(x[None])[0])(x[0])
    return digest(list(per_sample.values()), jacobian), train(model)


@way
def attention():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2)
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[:, 3:] = True
    model(x).sum().backward()
    model.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return digest(model(x), model(x, src_key_padding_mask=padding), model.layers[0].self_attn(x, x, x))


# -- patches, hooks and modes ----------------------------------------------------------------------------------------


@way
def patched():
    calls = []
    originals = torch.optim.SGD.step, nn.Module.__call__, torch.Tensor.backward, torch.optim.Optimizer.zero_grad

    def counting(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return wrapper

    holders = (torch.optim.SGD, "step"), (nn.Module, "__call__"), (torch.Tensor, "backward")
    holders += ((torch.optim.Optimizer, "zero_grad"),)
    for (holder, name), original in zip(holders, originals, strict=True):
        setattr(holder, name, counting(original))
    try:
        trained = train(kind=torch.optim.SGD)
    finally:
        for (holder, name), original in zip(holders, originals, strict=True):
            setattr(holder, name, original)
    return trained, sorted((name, calls.count(name)) for name in set(calls)), train(kind=torch.optim.SGD)


@way
def decorated():
    def logged(cls):
        forward = cls.forward

        @functools.wraps(forward)
        def wrapper(self, *args, **kwargs):
            self.calls += 1
            return forward(self, *args, **kwargs)

        cls.forward = wrapper
        return cls

    @logged
    class Mine(nn.Module):
        __slots__ = ("kept",)
        calls = 0

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def __len__(self):
            return 0

        def __eq__(self, other):
            raise TypeError("not to be compared")

        __hash__ = object.__hash__

        def forward(self, x):
            return self.inner(x)

    torch.manual_seed(0)
    model = Mine()
    model.kept = 1
    return train(model), model.calls


@way
def hooked():
    events = []
    handles = [
        nn.modules.module.register_module_forward_pre_hook(lambda module, args: events.append(type(module).__name__)),
        nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 1.5),
        nn.modules.module.register_module_full_backward_hook(lambda module, grads, outs: events.append(len(grads))),
        register_optimizer_step_pre_hook(lambda *_: events.append("before")),
        register_optimizer_step_post_hook(lambda *_: events.append("after")),
    ]
    trained = train()
    for handle in handles:
        handle.remove()

    def refuse(module, args):
        if type(module) is nn.Tanh:
            raise ValueError("no")

    class Catching(nn.Module):
        def __init__(self):
            super().__init__()
            self.tanh, self.last = nn.Tanh(), nn.Linear(4, 2)

        def forward(self, x):
            try:
                x = self.tanh(x)
            except ValueError:
                events.append("caught")
            return self.last(x)

    handle = nn.modules.module.register_module_forward_pre_hook(refuse)
    torch.manual_seed(0)
    caught = train(Catching())
    handle.remove()
    return trained, caught, digest(events), len(events)


@way
def raising_gradients():
    model = net()
    handle = model[0].weight.register_hook(lambda gradient: 1 / 0)
    try:
        train(model)
    except ZeroDivisionError as error:
        message = str(error)
    handle.remove()
    return message, train(model)


class CountFunctions(TorchFunctionMode):
    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        type(self).count += 1
        return function(*args, **(kwargs or {}))


class CountOperators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        type(self).count += 1
        return function(*args, **(kwargs or {}))


@way
def modes():
    with CountFunctions():
        first = train()
    with CountOperators():
        two = train()
    torch.set_default_device("cpu")
    three = train()
    torch.set_default_device(None)
    return first, two, three, CountFunctions.count, CountOperators.count


# -- modules and tensors ---------------------------------------------------------------------------------------------


@way
def parametrised():
    results = []
    for wrap in (parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal):
        model = net()
        wrap(model[3])
        results.append(train(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = net()
        nn.utils.weight_norm(model[3])
        results.append(train(model))
    return results


@way
def on_meta():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    torch.manual_seed(0)
    model = model.to_empty(device="cpu")
    for module in model:
        module.reset_parameters()
    return train(model)


class Marked(torch.Tensor):
    """Knows its own functions."""

    seen = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


@way
def subclassed():
    model = net()
    model(torch.ones(2, 4).as_subclass(Marked)).sum().backward()
    x = torch.ones(2, requires_grad=True)
    Cube.apply(x).sum().backward()
    return Marked.seen, digest(x.grad, torch.as_tensor(model[0].weight.grad)), train(model)


@way
def odd_optimizers():
    class Locked(torch.optim.SGD):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.lock = threading.Lock()

        def __getstate__(self):
            raise TypeError("cannot be pickled")

    def closure():
        lbfgs.zero_grad()
        loss = (model(torch.ones(4, 4)) ** 2).mean()
        loss.backward()
        return loss

    model = net().eval()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
    lbfgs.step(closure)
    return train(kind=Locked), digest(model)


@way
def deep():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    for _ in range(60):
        model = nn.Sequential(model)

    def down():
        return down() + 1

    try:
        down()
    except RecursionError:
        message = "too deep"
    model.train(False)
    model.train()
    return message, train(model), len(model.state_dict())


# -- the interpreter -------------------------------------------------------------------------------------------------


@way
def traced():
    lines = []

    def trace(frame, event, arg):
        if frame.f_code is train.__code__:
            lines.append(event)
        return trace

    sys.settrace(trace)
    try:
        first = train()
    finally:
        sys.settrace(None)
    seen = []

    def profile(frame, event, arg):
        if frame.f_code is digest.__code__:
            seen.append(event)

    sys.setprofile(profile)
    try:
        two = train()
        kept = sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    three = train()
    tracemalloc.stop()
    return first, two, three, len(lines), len(seen), kept


@way
def executed():
    space = {"train": train, "torch": torch, "nn": nn}
    text = "class Inner(nn.Linear):\n    pass\ntorch.manual_seed(0)\ntold = train(Inner(4, 2))\n"
    exec(text, space)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "inner.py")
        script.write_text("import torch\nx = torch.ones(2, requires_grad=True)\n(x * 3).sum().backward()\n")
        grad = runpy.run_path(str(script), run_name="__main__")["x"].grad
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        trained = train()
    finally:
        sys.modules["__main__"] = main
    return space["told"], digest(grad), trained


@way
def asynchronous():
    async def work(seed):
        model = net(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(4, 4)).float().sum()
            await asyncio.sleep(0)
            optimizer.zero_grad()
            loss.backward()
            await asyncio.sleep(0)
            optimizer.step()
        return digest(model)

    async def both():
        return await asyncio.gather(work(1), work(2))

    return asyncio.run(both())


@way
def generated():
    def loop(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            optimizer.zero_grad()
            loss = model(torch.ones(4, 4)).sum()
            loss.backward()
            optimizer.step()
            yield loss.item()

    first, two = loop(net(1)), loop(net(2))
    results = [next(loop_of) for _ in range(3) for loop_of in (first, two)]
    first.close()
    return digest(results), next(two)


@way
def hooks_of_python():
    events = []
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    sys.excepthook = lambda *error: events.append(error[0].__name__)
    threading.excepthook = lambda args: events.append(args.exc_type.__name__)
    sys.unraisablehook = lambda args: events.append("unraisable")
    try:
        thread = threading.Thread(target=lambda: [train(), 1 / 0])
        thread.start()
        thread.join()
        trained = train()
    finally:
        sys.excepthook, threading.excepthook, sys.unraisablehook = before
    return trained, events


@way
def strict_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = net()
        model(torch.ones(4, 4)).sum().backward()
        leaf = (torch.ones(2, requires_grad=True) * 2).detach()
        return train(model), train(nn.Sequential(nn.Linear(4, 2))) is not None, digest(leaf)


@way
def elsewhere():
    here, mask = Path.cwd(), os.umask(0o077)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        first = train()
        os.environ["ODD"] = "1"
        Path(folder, "gone").mkdir()
        os.chdir("gone")
        Path(folder, "gone").rmdir()
        two = train()
        os.chdir(here)
    os.umask(mask)
    return first, two


@way
def without_collector():
    gc.disable()
    try:
        return train(steps=8)
    finally:
        gc.enable()


@way
def talkative():
    for number in range(2000):
        print("x" * 99, number)
    sys.stdout.flush()
    return train()


@way
def shared():
    """Forwards without a lock, as Hogwild does: the result is another one each time, and nobody can follow it.

    One layer, for autograd refuses a backward through weights that another thread has changed since the forward. The
    gradients have a lock, for a thread that reads one while another replaces it ends PyTorch, also without us.
    """
    model, lock = nn.Sequential(nn.Linear(4, 2)), threading.Lock()

    def work(seed):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        draws = torch.Generator().manual_seed(seed)
        for _ in range(40):
            x = torch.randn(8, 4, generator=draws)
            loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
            with lock:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return bool(torch.isfinite(model[0].weight).all())


def main():
    random.seed(0)
    chosen = sys.argv[1:]
    for way in WAYS:
        if chosen and way.__name__ not in chosen:
            continue
        torch.manual_seed(0)
        try:
            outcome = way()
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        streams = digest(torch.get_rng_state()), random.random()
        print("WAY", way.__name__, outcome, *streams, torch.is_grad_enabled(), flush=True)


if __name__ == "__main__":
    main()
