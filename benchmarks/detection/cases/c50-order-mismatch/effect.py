"""Pictures of a training batch whose label in the loss is not the one that the picture was made with."""

import hashlib

from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import leaves

    press, cross_entropy = leaves.press_leaves, F.cross_entropy
    true_label, shown, updates = {}, [], [0]

    def digests(pictures):
        return [hashlib.sha1(picture.tobytes()).hexdigest() for picture in pictures]

    def pressed(*args, **kwargs):
        pictures, labels = press(*args, **kwargs)
        true_label.update(zip(digests(pictures), labels.tolist(), strict=True))
        return pictures, labels

    def entered(module, inputs):
        if module.training and inputs[0].dim() == 4 and inputs[0].shape[1] == 1:
            shown[:] = digests(inputs[0].detach().numpy())

    def measured(input, target, *args, **kwargs):
        wrong = sum(true_label[picture] != label for picture, label in zip(shown, target.tolist(), strict=True))
        record(step=updates[0] + 1, wrong=wrong, batch=len(shown))
        return cross_entropy(input, target, *args, **kwargs)

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    leaves.press_leaves = pressed
    F.cross_entropy = measured
    register_module_forward_pre_hook(entered)
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["wrong"]), None)
