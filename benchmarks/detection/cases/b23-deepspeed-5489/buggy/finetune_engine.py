"""An engine for fine-tuning: optimizer, warm-up, clipping and checkpoints of a model that is partly frozen."""

from pathlib import Path

import torch
from torch import nn


class FinetuneEngine:
    def __init__(self, model, lr, weight_decay=0.01, warmup=4, clip=1.0):
        self.module = model
        self.clip = clip
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=weight_decay)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.25, total_iters=warmup)
        self.steps = 0

    def __call__(self, *inputs):
        return self.module(*inputs)

    def train_step(self, loss):
        """Update the trained parameters to lower the loss."""
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.steps += 1

    def module_state(self):
        """The parameters and buffers of the model, by name, as float32 on the CPU."""
        parameters = {self.names[p]: p for group in self.optimizer.param_groups for p in group["params"]}
        tensors = {**parameters, **dict(self.module.named_buffers())}
        return {name: tensor.detach().float().cpu() for name, tensor in tensors.items()}

    def save_checkpoint(self, folder, tag):
        """Write model, optimizer and schedule to `folder`/`tag`.pt; the path."""
        path = Path(folder) / f"{tag}.pt"
        state = {
            "module": self.module_state(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "steps": self.steps,
        }
        torch.save(state, path)
        return path


def initialize(model, **options):
    return FinetuneEngine(model, **options)
