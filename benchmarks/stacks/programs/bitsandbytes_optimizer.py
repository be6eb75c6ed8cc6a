"""Training with the optimizers of bitsandbytes: 8-bit states, 32 bits for an embedding, checkpoints, and resuming."""

import argparse
import tempfile

import bitsandbytes
import torch
import torch.nn.functional as F
from bitsandbytes.optim import GlobalOptimManager
from tiny import digest
from torch import nn

STEPS, WORDS = 30, 64


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))

    def forward(self, words):
        return self.layers(self.embedding(words).mean(dim=1))


def make(seed, optimizer):
    torch.manual_seed(seed)
    model = Classifier()
    manager = GlobalOptimManager.get_instance()
    manager.register_parameters(model.parameters())
    if optimizer == "adamw":
        made = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=5e-3, weight_decay=0.1, min_8bit_size=512)
        manager.override_config(model.embedding.weight, "optim_bits", 32)
    else:
        made = bitsandbytes.optim.Lion(model.parameters(), lr=1e-3, weight_decay=0.3)
    return model, made, torch.optim.lr_scheduler.OneCycleLR(made, max_lr=5e-3, total_steps=STEPS)


def train(model, optimizer, schedule, seed, steps, save=None):
    for step in steps:
        draw = torch.Generator().manual_seed(seed * 1000 + step)
        words = torch.randint(WORDS, (32, 12), generator=draw)
        labels = words.float().mean(dim=1).div(8).long()
        loss = F.cross_entropy(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.6f} rate {float(schedule.get_last_lr()[0]):.6f}")
        if save and step == STEPS // 2 - 1:
            parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
            torch.save({name: part.state_dict() for name, part in parts.items()}, save)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimizer", choices=("adamw", "lion"), default="adamw")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer, schedule = make(args.seed, args.optimizer)
        train(model, optimizer, schedule, args.seed, range(STEPS), f"{folder}/middle.pt")
        print("weights", digest(model))
        again, optimizer, schedule = make(args.seed, args.optimizer)
        state = torch.load(f"{folder}/middle.pt", weights_only=False)
        again.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        train(again, optimizer, schedule, args.seed, range(STEPS // 2, STEPS))
        print("resumed weights", digest(again), "equal:", digest(again) == digest(model))


if __name__ == "__main__":
    main()
