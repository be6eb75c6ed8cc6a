"""Gradients of the model that a backward finds not cleared, though an update used them."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    call, backward = torch.nn.Module.__call__, torch.Tensor.backward
    models, updates = {}, [0]

    def called(self, *args, **kwargs):
        models[id(self)] = self
        return call(self, *args, **kwargs)

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def counted(self, *args, **kwargs):
        live = {id(p): p for model in models.values() for p in model.parameters()}
        left = sum(p.grad is not None and bool(p.grad.any()) for p in live.values())
        record(step=updates[0] + 1, left_over=left, parameters=len(live))
        return backward(self, *args, **kwargs)

    torch.nn.Module.__call__ = called
    torch.Tensor.backward = counted
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    assert any(seen["parameters"] for seen in ranks[0]), "no model was seen"
    return next((seen["step"] for seen in ranks[0] if seen["left_over"]), None)
