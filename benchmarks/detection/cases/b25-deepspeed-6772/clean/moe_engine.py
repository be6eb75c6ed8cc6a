"""An engine for data-parallel models with expert-parallel parts."""

import torch
import torch.distributed as dist
from expert_parallel import ExpertParallel


class MoEEngine:
    """Averages gradients over ranks, steps, and knows the order in which the numbered modules are called."""

    def __init__(self, model):
        self.module = model
        self.order = []
        self.optimizer = None
        self.number_modules()
        self.tracing = [module.register_forward_pre_hook(self.note_call) for module in model.modules()]

    def number_modules(self):
        for count, module in enumerate(self.module.modules()):
            module.engine_id = count

    def note_call(self, module, inputs):
        self.order.append(module.engine_id)

    def distribute(self, make_optimizer):
        """Place the experts; the indices of this rank's. The optimizer gets the parameters that are here."""
        layers = [module for module in self.module.modules() if isinstance(module, ExpertParallel)]
        placed = [index for layer in layers for index in layer.place()]
        self.expert_parameters = {parameter for layer in layers for parameter in layer.parameters()}
        self.optimizer = make_optimizer(self.module.parameters())
        return placed

    def backward(self, loss):
        """Experts have had the tokens of all ranks, so theirs is a sum already."""
        self.optimizer.zero_grad()
        loss.backward()
        for handle in self.tracing:
            handle.remove()
        for parameter in self.module.parameters():
            if parameter in self.expert_parameters:
                if parameter.grad is not None:
                    parameter.grad /= dist.get_world_size()
            else:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def step(self):
        self.optimizer.step()


def initialize(model):
    """The engine for a model; all ranks start with the parameters of rank 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, src=0)
    return MoEEngine(model)
