"""How many tokens generate() gave, and how many it was asked for."""

import inspect

from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import generation

    generate = generation.generate
    signature = inspect.signature(generate)
    updates = [0]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def counted(*args, **kwargs):
        written = generate(*args, **kwargs)
        requested = signature.bind(*args, **kwargs).arguments["max_new_tokens"]
        record(step=updates[0], asked=requested, written=written.shape[1])
        return written

    generation.generate = counted
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["written"] > seen["asked"]), None)
