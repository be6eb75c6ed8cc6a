"""Spectrally normalized GAN on the digits: hinge loss, two critic steps per generator step, averaged generator."""

import copy
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader

LATENT = 24


class Generator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.width = width
        self.project = nn.Linear(LATENT, 2 * width * 2 * 2, bias=False)
        self.norm0 = nn.BatchNorm2d(2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, kernel_size=4, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.up2 = nn.ConvTranspose2d(width, width, kernel_size=4, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.to_image = nn.Conv2d(width, 1, kernel_size=3, padding=1)

    def forward(self, z):
        x = self.project(z).view(-1, 2 * self.width, 2, 2)
        x = torch.relu(self.norm0(x))
        x = torch.relu(self.norm1(self.up1(x)))
        x = torch.relu(self.norm2(self.up2(x)))
        return torch.tanh(self.to_image(x))


class Critic(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(
            spectral_norm(nn.Conv2d(1, width, 3, padding=1)),
            nn.LeakyReLU(0.1),
            spectral_norm(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.1),
            spectral_norm(nn.Conv2d(2 * width, 2 * width, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.1),
        )
        self.score = spectral_norm(nn.Linear(2 * width * 2 * 2, 1))

    def forward(self, images):
        return self.score(self.features(images).flatten(1)).squeeze(1)


def critic_hinge(real_scores, fake_scores):
    return torch.relu(1.0 - real_scores).mean() + torch.relu(1.0 + fake_scores).mean()


def generator_hinge(fake_scores):
    return -fake_scores.mean()


@torch.no_grad()
def update_average(average, model, decay):
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1.0 - decay)
    for slow, fast in zip(average.buffers(), model.buffers(), strict=True):
        slow.copy_(fast)


@torch.no_grad()
def sample(generator, noise):
    mode = generator.training
    generator.eval()
    images = generator(noise)
    generator.train(mode)
    return images


def distance(samples, reals):
    """How far mean and spread of the pixels are from those of the data."""
    gap = (samples.mean(0) - reals.mean(0)).abs().mean() + (samples.std(0) - reals.std(0)).abs().mean()
    return gap.item()


def set_requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad_(flag)


def endless(loader):
    while True:
        yield from loader


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=36, help="generator steps")
    parser.add_argument("--critic-steps", type=int, default=2, help="critic steps for each of them")
    parser.add_argument("--ema", type=float, default=0.9, help="decay of the generator's average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder for samples and weights")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    reals = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    batches = endless(DataLoader(reals, batch_size=64, shuffle=True, drop_last=True))

    generator, critic = Generator(), Critic()
    average = copy.deepcopy(generator).requires_grad_(False).eval()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.9))
    optimizer_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))

    fixed_noise = torch.randn(128, LATENT)
    gallery = [sample(average, fixed_noise)]
    print(f"before training: distance {distance(gallery[0], reals):.3f}")

    for step in range(1, args.steps + 1):
        for _ in range(args.critic_steps):
            real = next(batches)
            with torch.no_grad():
                fake = generator(torch.randn(len(real), LATENT))
            loss_c = critic_hinge(critic(real), critic(fake))
            optimizer_c.zero_grad()
            loss_c.backward()
            optimizer_c.step()

        set_requires_grad(critic, False)
        loss_g = generator_hinge(critic(generator(torch.randn(64, LATENT))))
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        set_requires_grad(critic, True)
        update_average(average, generator, args.ema)

        if step % 12 == 0:
            gallery.append(sample(average, fixed_noise))
            now, averaged = distance(sample(generator, fixed_noise), reals), distance(gallery[-1], reals)
            print(
                f"step {step:2d}: critic {loss_c.item():.3f}  generator {loss_g.item():+.3f}  "
                f"distance {now:.3f}, of the average {averaged:.3f}"
            )

    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "generator": generator.state_dict(),
                "average": average.state_dict(),
                "critic": critic.state_dict(),
                "optimizer_g": optimizer_g.state_dict(),
                "optimizer_c": optimizer_c.state_dict(),
            },
            out / "gan.pt",
        )
        torch.save(torch.stack(gallery), out / "gallery.pt")


if __name__ == "__main__":
    main()
