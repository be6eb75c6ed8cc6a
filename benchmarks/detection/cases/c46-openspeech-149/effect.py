"""Batches on which all ranks train in the same step."""

import hashlib

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    steps = [0]

    def called(module, args):
        if isinstance(module, DistributedDataParallel) and module.training and torch.is_grad_enabled():
            values = b"".join(tensor.numpy().tobytes() for tensor in args)
            record(step=steps[0] + 1, batch=hashlib.sha1(values).hexdigest()[:12])

    def stepped(optimizer, args, kwargs):
        steps[0] += 1

    register_module_forward_pre_hook(called)
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    pairs = zip(*ranks, strict=True)
    return next((first["step"] for first, other in pairs if first["batch"] == other["batch"]), None)
