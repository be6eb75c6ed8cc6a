"""Read the angles of a pendulum from two pictures, with a code from which the pictures must be redrawn as well."""

import argparse

import torch
from pendulum import SIZE, swing
from torch import nn, optim
from torch.nn.functional import mse_loss


class Encoder(nn.Sequential):
    def __init__(self, channels, code):
        super().__init__(
            nn.Conv2d(2, channels, 3, stride=2, padding=1),
            nn.ELU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(2 * channels * (SIZE // 4) ** 2, code),
            nn.ELU(),
        )


class Decoder(nn.Sequential):
    def __init__(self, channels, code):
        super().__init__(
            nn.Linear(code, 2 * channels * (SIZE // 4) ** 2),
            nn.ELU(),
            nn.Unflatten(1, (2 * channels, SIZE // 4, SIZE // 4)),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.ELU(),
            nn.ConvTranspose2d(channels, 2, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )


class Observer(nn.Module):
    def __init__(self, channels, code):
        super().__init__()
        self.encoder = Encoder(channels, code)
        self.decoder = Decoder(channels, code)
        self.angles = nn.Linear(code, 2)

    def forward(self, pictures):
        code = self.encoder(pictures)
        return self.angles(code), self.decoder(code)


def train(model, args, generator):
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    decay = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.98)
    history = []
    model.train()
    for step in range(args.steps):
        pictures, angles = swing(args.batch_size, generator)
        guess, redrawn = model(pictures)
        angle_error = mse_loss(guess, angles)
        frame_error = mse_loss(redrawn, pictures).item()
        loss = angle_error + args.frame_weight * frame_error
        history.append((loss.item(), frame_error))

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        if step % 10 == 9:
            mean, mean_frame = (sum(column) / 10 for column in zip(*history[-10:], strict=True))
            print(f"step {step + 1}: loss {mean:.4f}, of it pictures {args.frame_weight * mean_frame:.4f}")


@torch.no_grad()
def test(model, generator):
    model.eval()
    pictures, angles = swing(200, generator)
    guess, _ = model(pictures)
    return (guess - angles).abs().mean(), angles.abs().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--code", type=int, default=24)
    parser.add_argument("--frame-weight", type=float, default=2.0)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Observer(args.channels, args.code)
    train(model, args, torch.Generator().manual_seed(args.seed + 1))
    error, spread = test(model, torch.Generator().manual_seed(args.seed + 2))
    print(f"mean error {error.item():.3f} rad, of a mean angle of {spread.item():.3f} rad")


if __name__ == "__main__":
    main()
