"""DeepSpeed with ZeRO on two processes: bfloat16, accumulation, clipping, warm-up, checkpoints, and resuming."""

import argparse
import tempfile

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import digest
from torch import nn

STEPS, ACCUMULATION, MICRO_BATCH = 16, 2, 8


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def make_engine(seed, stage):
    torch.manual_seed(seed)
    model = Regressor()
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 3e-3, "warmup_num_steps": 6, "warmup_type": "linear"},
        },
        "steps_per_print": 10000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    engine, _, _, schedule = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    return engine, schedule


def train(engine, schedule, seed, steps, save=None):
    for step in steps:
        for micro_batch in range(ACCUMULATION):
            draw = torch.Generator().manual_seed(10_000 * seed + 100 * step + 10 * micro_batch + dist.get_rank())
            inputs = torch.randn(MICRO_BATCH, 16, generator=draw)
            targets = inputs[:, :4].sum(dim=1, keepdim=True).sin()
            loss = F.mse_loss(engine(inputs.bfloat16()).float(), targets)
            engine.backward(loss)
            engine.step()
        if dist.get_rank() == 0 and step % 4 == 3:
            print(f"step {step} loss {loss.item():.6f} rate {schedule.get_last_lr()[0]:.6f}")
        if save and step == STEPS // 2 - 1:
            engine.save_checkpoint(save, tag="middle")


def whole_digest(engine):
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return digest(engine.module)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    engine, schedule = make_engine(args.seed, args.stage)
    train(engine, schedule, args.seed, range(STEPS), folder[0])
    whole = whole_digest(engine)
    engine, schedule = make_engine(args.seed, args.stage)
    engine.load_checkpoint(folder[0], tag="middle")
    train(engine, schedule, args.seed, range(STEPS // 2, STEPS))
    resumed = whole_digest(engine)
    if dist.get_rank() == 0:
        print("weights", whole)
        print("resumed weights", resumed, "equal:", resumed == whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
