"""Denoise electrocardiograms with an autoencoder in mixed precision."""

import argparse

import torch
from halfstep import Engine
from heartbeats import FULL_SCALE, SAMPLES, record_beats
from torch import nn


class Denoiser(nn.Module):
    """Works in millivolts inside."""

    def __init__(self, hidden, code):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SAMPLES, hidden), nn.Tanh(), nn.Linear(hidden, code), nn.Tanh())
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.Tanh(), nn.Linear(hidden, SAMPLES))

    def forward(self, signal):
        return self.decoder(self.encoder(signal * FULL_SCALE)) / FULL_SCALE


def signal_to_noise(estimate, clean):
    return 10 * torch.log10(clean.square().mean() / (estimate.float() - clean).square().mean())


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--hidden", type=int, default=96)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
beats = torch.Generator().manual_seed(args.seed + 1)
test_noisy, test_clean = record_beats(128, torch.Generator().manual_seed(args.seed + 2))

model = Denoiser(args.hidden, code=24)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, eps=1e-12)
engine = Engine(model, optimizer, precision=torch.float16)

model.train()
for step in range(args.steps):
    noisy, clean = record_beats(args.batch_size, beats)
    loss = nn.functional.mse_loss(engine(noisy).float(), clean)
    engine.backward(loss)
    engine.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3e}")

model.eval()
with torch.no_grad():
    gain = signal_to_noise(engine(test_noisy), test_clean) - signal_to_noise(test_noisy, test_clean)
print(f"signal to noise: {gain.item():+.2f} dB")
