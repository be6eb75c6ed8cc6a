"""A GPT on an accelerator with bf16 autocast and fused AdamW: the workloads of `--device`.

It times its steps, each of which ends with a synchronization. Then it counts what the device is asked to do in some
further steps under torch.profiler, which are not timed.
"""

import argparse
import resource
from collections import Counter

import torch
from gpt_model import GPT, Sizes
from timing import Clock
from torch import nn
from torch.nn import functional as F

MODELS = {  # sizes and batch; on an H100 a step takes 100 to 300 ms
    "tiny": (Sizes(width=64, layers=2, heads=2, vocabulary=256, length=32, dropout=0.0), 4),
    "124m": (Sizes(width=768, layers=12, heads=12, vocabulary=50304, length=1024, dropout=0.0), 32),
    "1b": (Sizes(width=1792, layers=24, heads=14, vocabulary=50304, length=1024, dropout=0.0), 8),
}
WARM_UP = 10
"""The first steps compile and allocate, and are not timed."""
PROFILED = 2
WAITS = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "cudaMemcpy ")
"""Parts of the names of calls that wait for a device. A copy to the host is counted by itself."""
LONGEST = 12
"""Kernels with the longest time that the results name."""


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--model", choices=MODELS, required=True)
    options.add_argument("--device", required=True)
    options.add_argument("--steps", type=int, required=True)
    options.add_argument("--compile", action="store_true")
    options.add_argument("--profile", action="store_true")
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    module = torch.get_device_module(device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    sizes, batch = MODELS[chosen.model]
    with device:
        model = GPT(sizes)
    model.head.weight = model.tokens.weight
    for embedding in (model.tokens, model.places):
        nn.init.normal_(embedding.weight, std=0.02)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    network = torch.compile(model) if chosen.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    generator = torch.Generator(device).manual_seed(0)

    def step():
        tokens = torch.randint(sizes.vocabulary, (batch, sizes.length + 1), device=device, generator=generator)
        with torch.autocast(device.type, torch.bfloat16):
            logits = network(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    clock = Clock(warm_up=WARM_UP)
    for _ in range(WARM_UP + chosen.steps):
        step()
        module.synchronize()
        clock.tick()
    peak = peak_memory(device)
    counts = profiled(step, module, device) if chosen.profile else None
    clock.write_times(parameters=parameters, peak_bytes=peak, counts=counts)


def peak_memory(device):
    """Return the most bytes that were allocated on the device; for the CPU the peak of the resident memory."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.get_device_module(device).max_memory_allocated()


def profiled(step, module, device):
    """Return what the device is asked to do in a step: kernels, copies to the host, calls that wait, milliseconds.

    On the CPU an operation counts as a kernel.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(PROFILED):
            step()
            module.synchronize()
    kernels, waits, microseconds, to_host = 0, Counter(), Counter(), 0
    for event in profile.events():
        if event.is_user_annotation:  # a range of the host such as Optimizer.step, which spans many kernels
            continue
        on_host = event.device_type == torch.autograd.DeviceType.CPU
        if on_host and any(part in event.name for part in WAITS):
            waits[event.name] += 1
        elif not on_host and event.name.startswith("Memcpy DtoH"):
            to_host += 1
        elif event.name.startswith("aten::") if device.type == "cpu" else not on_host:
            kernels += 1
            microseconds[event.name[:100]] += event.time_range.elapsed_us()
    return {
        "kernels": kernels / PROFILED,
        "copies_to_host": to_host / PROFILED,
        "waits": {name: count / PROFILED for name, count in waits.items()},
        "kernel_ms": microseconds.total() / PROFILED / 1e3,
        "longest_ms": {name: round(time / PROFILED / 1e3, 2) for name, time in microseconds.most_common(LONGEST)},
    }


main()
