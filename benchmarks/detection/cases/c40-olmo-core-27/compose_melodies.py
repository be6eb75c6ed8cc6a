"""A causal convolutional network learns melodies, in two sittings: the second takes up the checkpoint of the first."""

import argparse
import tempfile

import torch
from melodies import NOTES, write_melodies
from runfolder import CosineSchedule, RunFolder
from torch import nn
from torch.nn import functional as F


class GatedConv(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size=2, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, kernel_size=1)

    def forward(self, x):
        signal, gate = self.conv(F.pad(x, (self.pad, 0))).chunk(2, dim=1)
        return x + self.mix(torch.tanh(signal) * torch.sigmoid(gate))


class Composer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.notes = nn.Embedding(NOTES, channels)
        self.convs = nn.Sequential(*(GatedConv(channels, dilation) for dilation in (1, 2, 4, 8)))
        self.readout = nn.Conv1d(channels, NOTES, kernel_size=1)

    def forward(self, melodies):
        return self.readout(self.convs(self.notes(melodies).transpose(1, 2)))


def build(args):
    torch.manual_seed(args.seed)
    model = Composer(args.channels)
    groups = [
        {"params": model.notes.parameters(), "weight_decay": 0.0, "lr": 2 * args.lr},
        {"params": [*model.convs.parameters(), *model.readout.parameters()]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, weight_decay=0.01)
    return model, optimizer, CosineSchedule(args.warmup, args.steps)


def sit_down(args, folder, until):
    """Train up to a step, from the newest checkpoint where there is one. Returns the model."""
    model, optimizer, schedule = build(args)
    run = RunFolder(folder, model, optimizer, schedule)
    if run.take_up():
        print(f"taken up at step {run.step}")
    model.train()
    while run.step < until:
        melodies = write_melodies(args.batch_size, seed=(args.seed, run.step))
        loss = F.cross_entropy(model(melodies[:, :-1]), melodies[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        run.set_rates()
        optimizer.step()
        run.step += 1
        if run.step % 4 == 0:
            print(f"step {run.step}: loss {loss.item():.3f}")
    run.save()
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--stop-at", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        sit_down(args, folder, until=args.stop_at)
        model = sit_down(args, folder, until=args.steps)

    model.eval()
    melodies = write_melodies(64, seed=(args.seed, 10_000))
    with torch.no_grad():
        right = model(melodies[:, :-1]).argmax(1) == melodies[:, 1:]
    print(f"next note right: {right[:, 16:].float().mean().item():.1%} in the second half")


if __name__ == "__main__":
    main()
