"""A vector-quantised autoencoder on digits; the codebook is a moving average of what the encoder gives."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Codebook(nn.Module):
    """Replaces each vector by the nearest of `size` codes. In training the codes move towards what they stand for."""

    def __init__(self, size, dim, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay = decay
        self.eps = eps
        self.register_buffer("codes", torch.randn(size, dim))
        self.register_buffer("uses", torch.ones(size))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, vectors):
        flat = vectors.reshape(-1, vectors.shape[-1])
        chosen = torch.cdist(flat, self.codes).argmin(1)
        if self.training:
            self.move(flat.detach(), chosen)
        quantised = self.codes[chosen].view_as(vectors)
        commitment = F.mse_loss(vectors, quantised.detach())
        return vectors + (quantised - vectors).detach(), commitment, chosen

    @torch.no_grad()
    def move(self, vectors, chosen):
        one_hot = F.one_hot(chosen, len(self.codes)).to(vectors.dtype)
        self.uses.lerp_(one_hot.sum(0), 1 - self.decay)
        self.sums.lerp_(one_hot.t() @ vectors, 1 - self.decay)
        total = self.uses.sum()
        smooth = (self.uses + self.eps) / (total + len(self.codes) * self.eps) * total
        self.codes.copy_(self.sums / smooth[:, None])


class VQVAE(nn.Module):
    def __init__(self, codes=32, dim=16, width=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, dim, 1),
            nn.BatchNorm2d(dim, affine=False),  # vectors as far apart as the codes are at first
        )
        self.codebook = Codebook(codes, dim)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, width, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        )

    def forward(self, images):
        vectors = self.encoder(images).permute(0, 2, 3, 1)
        quantised, commitment, chosen = self.codebook(vectors)
        return self.decoder(quantised.permute(0, 3, 1, 2)), commitment, chosen


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    error, used = 0.0, set()
    for (images,) in loader:
        restored, _, chosen = model(images)
        error += F.mse_loss(restored, images, reduction="sum").item()
        used.update(chosen.tolist())
    model.train()
    return error / len(loader.dataset), len(used)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--codes", type=int, default=32)
    parser.add_argument("--beta", type=float, default=0.25, help="weight of the commitment loss")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16.0
    train_set, test_set = random_split(TensorDataset(images), [0.8, 0.2])
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=180)

    model = VQVAE(codes=args.codes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for (batch,) in train_loader:
            restored, commitment, _ = model(batch)
            loss = F.mse_loss(restored, batch) + args.beta * commitment
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error, used = evaluate(model, test_loader)
        print(f"epoch {epoch}: loss {loss.item():.4f}, test error {error:.3f} per image, {used} codes in use")


if __name__ == "__main__":
    main()
