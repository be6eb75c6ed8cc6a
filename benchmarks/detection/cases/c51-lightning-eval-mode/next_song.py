"""Recommend the next song with a transformer that reads what was heard so far."""

import argparse

import torch
from fitloop import FitLoop, Recipe
from playlists import LENGTH, SONGS, Playlists
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class NextSong(Recipe):
    def __init__(self, width=32, heads=2, layers=2, dropout=0.1, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.songs = nn.Embedding(SONGS, width)
        self.places = nn.Embedding(LENGTH - 1, width)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=2 * width, dropout=dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH - 1))

    def forward(self, heard):
        x = self.dropout(self.songs(heard) * self.songs.embedding_dim**0.5 + self.places.weight)
        x = self.encoder(x, mask=self.mask, is_causal=True)
        return x @ self.songs.weight.T / self.songs.embedding_dim**0.5

    def training_step(self, batch):
        heard, following = batch
        return F.cross_entropy(self(heard).flatten(0, 1), following.flatten())

    def validation_step(self, batch):
        heard, following = batch
        scores = self(heard)
        best = scores.topk(3, dim=-1).indices
        return {
            "loss": F.cross_entropy(scores.flatten(0, 1), following.flatten()).item(),
            "among three": (best == following[..., None]).any(dim=-1).float().mean().item(),
        }

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=12, gamma=0.7)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listeners", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--validate-every", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train = DataLoader(Playlists(args.listeners, args.seed), batch_size=20, shuffle=True, drop_last=True)
    val = DataLoader(Playlists(80, args.seed + 1), batch_size=40)
    loop = FitLoop(max_epochs=args.epochs, validate_every=args.validate_every)
    loop.fit(NextSong(), train, val)


if __name__ == "__main__":
    main()
