"""Low-rank adapters for the linear layers of a model that stays as it is otherwise."""

from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True)
class AdapterConfig:
    """`targets`: the last names of the layers to adapt; `trained_whole`: modules that train beside the adapters."""

    rank: int = 4
    targets: tuple[str, ...] = ()
    trained_whole: tuple[str, ...] = ()
    inference_mode: bool = False


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus the product of two thin matrices, of which several pairs may be there by name."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.ParameterDict()
        self.up = nn.ParameterDict()
        self.active = None

    def add(self, name, rank):
        self.down[name] = nn.Parameter(torch.randn(rank, self.base.in_features) / self.base.in_features**0.5)
        self.up[name] = nn.Parameter(torch.zeros(self.base.out_features, rank))

    def forward(self, x):
        update = nn.functional.linear(x, self.down[self.active])
        return self.base(x) + nn.functional.linear(update, self.up[self.active])


class AdaptedModel(nn.Module):
    """A model with adapters. One of them is active: it takes part in the forward and, as a rule, is in training."""

    def __init__(self, model, config, name="default"):
        super().__init__()
        self.model = model
        self.configs = {}
        self.active = name
        model.requires_grad_(False)
        for part in config.trained_whole:
            model.get_submodule(part).requires_grad_(True)
        self.inject(name, config)
        self.start = {key: value.clone() for key, value in self.weights_of(name).items()}

    def forward(self, *inputs):
        return self.model(*inputs)

    def layers(self):
        return [module for module in self.modules() if isinstance(module, AdaptedLinear)]

    def weights_of(self, name):
        """The weights of an adapter, by the place of their layer."""
        weights = {}
        for place, layer in enumerate(self.layers()):
            weights[f"{place}.down"] = layer.down[name].detach()
            weights[f"{place}.up"] = layer.up[name].detach()
        return weights

    def inject(self, name, config):
        """Add an adapter beside those that are there. The active adapter stays active."""
        self.configs[name] = config
        for parent in [module for module in self.model.modules() if not isinstance(module, AdaptedLinear)]:
            for child_name, child in list(parent.named_children()):
                if child_name in config.targets and isinstance(child, nn.Linear):
                    setattr(parent, child_name, AdaptedLinear(child))
        for layer in self.layers():
            layer.add(name, config.rank)
            layer.down[name].requires_grad_(not config.inference_mode)
            layer.up[name].requires_grad_(not config.inference_mode)
        self.set_active(self.active, inference_mode=self.configs[self.active].inference_mode)

    def set_active(self, name, inference_mode=False):
        """Let an adapter take part in the forward, in training unless `inference_mode` is set."""
        self.active = name
        for layer in self.layers():
            layer.active = name
            layer.down[name].requires_grad_(not inference_mode)
            layer.up[name].requires_grad_(not inference_mode)

    def remove(self, name):
        del self.configs[name]
        for layer in self.layers():
            del layer.down[name], layer.up[name]

    @torch.no_grad()
    def save_progress(self, file):
        """Save what has to be added to the start: a pair of matrices for each layer that gives now minus start."""
        self.inject("start", replace(self.configs[self.active], inference_mode=True))
        saved = {}
        for place, layer in enumerate(self.layers()):
            layer.down["start"].copy_(self.start[f"{place}.down"])
            layer.up["start"].copy_(self.start[f"{place}.up"])
            saved[f"{place}.down"] = torch.cat([layer.down[self.active], layer.down["start"]])
            saved[f"{place}.up"] = torch.cat([layer.up[self.active], -layer.up["start"]], dim=1)
        torch.save(saved, file)
        self.remove("start")
