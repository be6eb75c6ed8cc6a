"""Time steps at zero input, softplus of their bias, against the range that the layer was configured for."""

from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook


def watch(record):
    seen = set()

    def entered(module, inputs):
        if hasattr(module, "dt_bias") and module not in seen:
            seen.add(module)
            steps = F.softplus(module.dt_bias.detach())
            low, high = 0.99 * module.dt_min, 1.01 * module.dt_max
            outside = int(((steps < low) | (steps > high)).sum())
            record(step=0, outside=outside, spread=(steps.max() - steps.min()).item())

    register_module_forward_pre_hook(entered)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["outside"] or seen["spread"] == 0), None)
