"""Names of the model's parameters, and which of these are in the checkpoints that the engine writes."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import finetune_engine

    save, updates = finetune_engine.FinetuneEngine.save_checkpoint, [0]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def saved(self, *args, **kwargs):
        path = save(self, *args, **kwargs)
        stored = torch.load(path)["module"]
        missing = [name for name, _ in self.module.named_parameters() if name not in stored]
        record(step=updates[0], stored=len(stored), missing=missing)
        return path

    finetune_engine.FinetuneEngine.save_checkpoint = saved
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    assert ranks[0], "no checkpoint was written"
    return next((seen["step"] for seen in ranks[0] if seen["missing"]), None)
