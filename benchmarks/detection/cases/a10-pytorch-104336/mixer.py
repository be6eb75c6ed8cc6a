"""MLP-Mixer: tiles of a picture are mixed with each other, then their features."""

from torch import nn


class Mix(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.up = nn.Linear(size, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, size)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class MixerLayer(nn.Module):
    def __init__(self, tiles, width):
        super().__init__()
        self.tile_norm = nn.LayerNorm(width)
        self.tile_mix = Mix(tiles, 2 * tiles)
        self.feature_norm = nn.LayerNorm(width)
        self.feature_mix = Mix(width, 2 * width)

    def forward(self, x):
        x = x + self.tile_mix(self.tile_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feature_mix(self.feature_norm(x))


class Mixer(nn.Module):
    def __init__(self, side, tile, classes, width=32, layers=2):
        super().__init__()
        tiles = (side // tile) ** 2
        self.tile = tile
        self.stem = nn.Linear(tile * tile, width)
        self.layers = nn.Sequential(*(MixerLayer(tiles, width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, pictures):
        tiles = pictures.unfold(1, self.tile, self.tile).unfold(2, self.tile, self.tile)
        return self.norm(self.layers(self.stem(tiles.flatten(3).flatten(1, 2)))).mean(dim=1)

    def forward(self, pictures):
        return self.head(self.features(pictures))
