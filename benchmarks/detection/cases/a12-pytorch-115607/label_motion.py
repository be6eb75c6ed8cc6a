"""Tell activities apart in accelerometer windows, with a 1-d ConvNet trained day after day of a diary."""

from argparse import ArgumentParser
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F
from compiled_optim import CompiledAdam
from motion_diary import ACTIVITIES, UNKNOWN, MotionDiary, windows


@dataclass
class Config:
    weeks: int = 3
    windows: int = 24
    channels: int = 16
    lr: float = 8e-3
    seed: int = 20

    @classmethod
    def from_command_line(cls):
        parser = ArgumentParser(description=__doc__)
        for field in fields(cls):
            parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
        return cls(**vars(parser.parse_args()))


class MotionNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv1d(3, channels, kernel_size=7, stride=2, padding=3)
        self.norm = nn.GroupNorm(4, channels)
        self.deep = nn.Conv1d(channels, 2 * channels, kernel_size=5, stride=2, padding=2)
        self.head = nn.Linear(4 * channels, len(ACTIVITIES))

    def forward(self, signal):
        x = F.relu(self.norm(self.stem(signal)))
        x = F.relu(self.deep(x))
        return self.head(torch.cat([x.mean(-1), x.amax(-1)], dim=1))


def train_one_pass(model, optimizer, schedule, diary):
    """One pass through the diary. Windows without a label teach nothing, on some days there are no others."""
    model.train()
    losses = []
    for signal, kinds in diary:
        optimizer.zero_grad(set_to_none=True)
        known = kinds != UNKNOWN
        if known.any():
            loss = F.cross_entropy(model(signal[known]), kinds[known])
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        schedule.step()
    return sum(losses) / len(losses)


@torch.inference_mode()
def accuracy(model, signal, kinds):
    model.eval()
    return (model(signal).argmax(-1) == kinds).float().mean().item()


def main():
    config = Config.from_command_line()
    torch.manual_seed(config.seed)
    diary = MotionDiary(config.windows, config.seed)
    test = windows(400, torch.Generator().manual_seed(config.seed + 1))
    model = MotionNet(config.channels)
    optimizer = CompiledAdam(model.parameters(), lr=config.lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.98)
    for week in range(1, config.weeks + 1):
        loss = train_one_pass(model, optimizer, schedule, diary)
        print(f"pass {week}: loss {loss:.3f}, test accuracy {accuracy(model, *test):.1%}")
    print(f"the step was compiled {optimizer.compilations} times")


if __name__ == "__main__":
    main()
