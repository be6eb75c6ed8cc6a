"""A tracing compiler: a module becomes a graph of primitives, transforms rewrite it, an executor runs it."""

import torch
from autocast_transform import autocast
from torch import fx, nn


class PrimitiveTracer(fx.Tracer):
    """Traces through every module, down to the functions that torch itself provides."""

    def is_leaf_module(self, module, qualified_name):
        return False


class CompiledModule(nn.Module):
    """Runs the traced graph of a module; one program for each dtype that it was called under."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.graph = PrimitiveTracer().trace(module)
        self.programs = {}

    def forward(self, *inputs):
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        if dtype not in self.programs:
            self.programs[dtype] = self.compile_for(dtype)
        with torch.autocast("cpu", enabled=False):
            return self.programs[dtype](*inputs)

    def compile_for(self, dtype):
        graph = self.graph if dtype is None else autocast(self.graph, dtype)
        graph.eliminate_dead_code()
        return fx.GraphModule(self.module, graph)


def jit(module):
    """A module with the parameters of `module` that runs compiled. Control flow must not depend on data."""
    return CompiledModule(module)
