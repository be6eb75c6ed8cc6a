"""Tell birds by their song: an MLP-mixer over patches of spectrograms, trained in float16."""

from argparse import ArgumentParser

import torch
from birdsongs import BANDS, FRAMES, SPECIES, BirdSongs
from torch import nn
from torch.nn import functional as F
from wrentrainer import Trainer, TrainingArguments


class MixerBlock(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norm_patches = nn.LayerNorm(width)
        self.across_patches = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.norm_width = nn.LayerNorm(width)
        self.across_width = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.across_patches(self.norm_patches(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across_width(self.norm_width(x))


class SongMixer(nn.Module):
    """Gives the loss as well where labels are given."""

    def __init__(self, patch=8, width=48, depth=2):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, width)
        patches = (BANDS // patch) * (FRAMES // patch)
        self.blocks = nn.Sequential(*(MixerBlock(patches, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, len(SPECIES))

    def forward(self, spectrogram, label=None):
        patches = spectrogram.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        x = self.blocks(self.embed(patches.flatten(3).flatten(1, 2)))
        logits = self.classifier(self.norm(x).mean(dim=1)).float()
        loss = None if label is None else F.cross_entropy(logits, label)
        return {"loss": loss, "logits": logits}


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--songs", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    arguments = TrainingArguments(
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        max_grad_norm=0.5,
        fp16=True,
        logging_steps=12,
        seed=options.seed,
    )
    torch.manual_seed(options.seed)
    trainer = Trainer(SongMixer(), arguments, BirdSongs(options.songs, options.seed + 1))
    held_out = BirdSongs(150, options.seed + 2)
    print("before:", trainer.evaluate(held_out))
    trainer.train()
    print("after:", trainer.evaluate(held_out))


if __name__ == "__main__":
    main()
