"""The learning rate of each update, and the epoch that the update was in."""

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader


def watch(record):
    iterate = DataLoader.__iter__
    updates, rounds = [0], [0]

    def started(self):
        rounds[0] += 1
        return iterate(self)

    def stepping(optimizer, args, kwargs):
        updates[0] += 1
        record(step=updates[0], epoch=rounds[0], lr=optimizer.param_groups[0]["lr"])

    DataLoader.__iter__ = started
    register_optimizer_step_pre_hook(stepping)


def first_bad_step(ranks):
    pairs = zip(ranks[0], ranks[0][1:], strict=False)
    return next((b["step"] for a, b in pairs if a["epoch"] == b["epoch"] and a["lr"] != b["lr"]), None)
