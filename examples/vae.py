"""Variational autoencoder on the 8x8 digits."""

import argparse
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.latent = latent
        self.fc1 = nn.Linear(64, 256)
        self.fc21 = nn.Linear(256, latent)
        self.fc22 = nn.Linear(256, latent)
        self.fc3 = nn.Linear(latent, 256)
        self.fc4 = nn.Linear(256, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


# reconstruction term plus KL divergence to the unit Gaussian, summed over pixels and batch
def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def show(image):
    shades = " .:-=+*#%@"
    for row in image.view(8, 8).tolist():
        print("    " + "".join(2 * shades[int(v * 9.99)] for v in row))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=100, metavar="N")
    parser.add_argument("--epochs", type=int, default=8, metavar="N")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    args = parser.parse_args()

    torch.manual_seed(args.seed)

    images = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    train_loader = DataLoader(images[:1500], batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(images[1500:], batch_size=args.batch_size, shuffle=False)

    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    out_dir = tempfile.TemporaryDirectory()

    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss = 0
        for data in train_loader:
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
        print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")

        model.eval()
        test_loss = 0
        with torch.no_grad():
            for data in test_loader:
                recon_batch, mu, logvar = model(data)
                test_loss += loss_function(recon_batch, data, mu, logvar).item()
        print(f"====> Test set loss: {test_loss / len(test_loader.dataset):.4f}")

        with torch.no_grad():
            sample = model.decode(torch.randn(16, model.latent))
        print(f"      sample: mean intensity {sample.mean():.3f}, spread over samples {sample.std(0).mean():.3f}")

        state = {"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, Path(out_dir.name) / f"vae_{epoch}.pt")

    show(sample[0])
    out_dir.cleanup()
