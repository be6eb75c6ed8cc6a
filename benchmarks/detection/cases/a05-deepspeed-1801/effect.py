"""Weights of LayerNorms that are not the same on both ranks when the next forward, or the end of the program, comes."""

import atexit
import hashlib

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def digest(tensor):
    return hashlib.sha1(tensor.detach().float().contiguous().numpy().tobytes()).hexdigest()[:12]


def watch(record):
    norms, steps, seen = [], [0], set()
    init, forward = torch.nn.LayerNorm.__init__, torch.nn.LayerNorm.forward

    def built(self, *args, **kwargs):
        init(self, *args, **kwargs)
        norms.append(self)

    def used(self, x):
        look()
        return forward(self, x)

    def look():
        if steps[0] not in seen:
            seen.add(steps[0])
            record(step=steps[0], norms=[digest(p) for norm in norms for p in norm.parameters()])

    def stepped(optimizer, args, kwargs):
        steps[0] += 1

    torch.nn.LayerNorm.__init__, torch.nn.LayerNorm.forward = built, used
    register_optimizer_step_post_hook(stepped)
    atexit.register(look)


def first_bad_step(ranks):
    pairs = zip(*ranks, strict=True)
    return next((first["step"] for first, other in pairs if first["norms"] != other["norms"]), None)
