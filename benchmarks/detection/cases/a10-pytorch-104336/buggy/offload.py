"""Makes room in memory for a while: the parameters of a model go to a file and come back."""

from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist


class Offload:
    """Moves the parameters of `model`, which `optimizer` updates, to a file in `folder` and back."""

    def __init__(self, model, optimizer, folder):
        self.model = model
        self.optimizer = optimizer
        self.file = Path(folder) / f"parameters-{dist.get_rank()}.pt"

    @contextmanager
    def away(self):
        """Within this context the model holds no values and cannot be used."""
        self.park()
        try:
            yield
        finally:
            self.fetch()

    def park(self):
        self.optimizer.zero_grad(set_to_none=True)
        torch.save({name: parameter.detach() for name, parameter in self.model.named_parameters()}, self.file)
        for name, parameter in list(self.model.named_parameters()):
            self.place(name, parameter, parameter.new_empty(0))

    def fetch(self):
        stored = torch.load(self.file)
        for name, parameter in list(self.model.named_parameters()):
            self.place(name, parameter, stored[name])

    def place(self, name, parameter, values):
        """Let the parameter of this name hold the values."""
        owner, _, attribute = name.rpartition(".")
        moved = torch.nn.Parameter(values, parameter.requires_grad)
        setattr(self.model.get_submodule(owner), attribute, moved)
        for group in self.optimizer.param_groups:
            group["params"] = [moved if held is parameter else held for held in group["params"]]
        if parameter in self.optimizer.state:
            self.optimizer.state[moved] = self.optimizer.state.pop(parameter)
