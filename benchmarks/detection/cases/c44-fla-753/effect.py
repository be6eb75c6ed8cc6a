"""The spread of all weights that a rank starts the first forward with, against the configured one."""

import math

from torch.nn.modules.module import register_module_forward_pre_hook


def watch(record):
    done = []

    def entered(module, inputs):
        if done:
            return
        done.append(module)
        config = module.config
        for name, parameter in module.named_parameters():
            if name.endswith("weight") and "norm" not in name:
                narrower = math.sqrt(2 * config.layers) if ".leave." in name else 1.0
                expected = config.initializer_range / narrower
                record(step=0, name=name, ratio=parameter.detach().std().item() / expected)

    register_module_forward_pre_hook(entered)


def first_bad_step(ranks):
    return next((seen["step"] for rank in ranks for seen in rank if not 0.7 < seen["ratio"] < 1.4), None)
