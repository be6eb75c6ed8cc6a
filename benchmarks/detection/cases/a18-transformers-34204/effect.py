"""Rows that the model answers for, and samples that were fetched for them."""

from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import scene_model
    import scenes

    fetch = scenes.SceneQuestions.__getitem__
    updates, fetched = [0], [0]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def counted(self, index):
        fetched[0] += 1
        return fetch(self, index)

    def answered(module, inputs, output):
        if isinstance(module, scene_model.AnswerModel):
            record(step=updates[0] + module.training, fetched=fetched[0], rows=output.shape[0])
            fetched[0] = 0

    scenes.SceneQuestions.__getitem__ = counted
    register_optimizer_step_post_hook(stepped)
    register_module_forward_hook(answered)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["rows"] != seen["fetched"]), None)
