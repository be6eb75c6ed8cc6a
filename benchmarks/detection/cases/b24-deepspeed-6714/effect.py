"""All-reduces that ranks meet in, though one calls it for another group of parameters than the other."""

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import stage_clip

    all_reduce, pipeline_norm = dist.all_reduce, stage_clip.pipeline_norm
    steps, purpose = [0], [""]

    def reducing(tensor, *args, **kwargs):
        record(step=steps[0] + 1, op="all_reduce", shape=list(tensor.shape), purpose=purpose[0])
        return all_reduce(tensor, *args, **kwargs)

    def norm_of(group, members):
        purpose[0] = group
        norm = pipeline_norm(group, members)
        purpose[0] = ""
        return norm

    def stepped(optimizer, args, kwargs):
        steps[0] += 1

    dist.all_reduce, stage_clip.pipeline_norm = reducing, norm_of
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    pairs = zip(*ranks, strict=True)
    return next((first["step"] for first, other in pairs if first != other), None)
