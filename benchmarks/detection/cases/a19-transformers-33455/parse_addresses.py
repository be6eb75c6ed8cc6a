"""Tag the parts of postal addresses, character by character, with a bidirectional GRU."""

import argparse

import torch
from address_parts import CHARACTERS, IGNORE, PARTS, examples, pad
from fitter import FitArguments, Fitter
from torch import nn
from torch.utils.data import DataLoader


class AddressTagger(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(len(CHARACTERS) + 1, 16, padding_idx=0)
        self.gru = nn.GRU(16, hidden, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * hidden, len(PARTS))

    def scores(self, characters):
        return self.tag(self.gru(self.embed(characters))[0])

    def forward(self, characters, tags):
        return nn.functional.cross_entropy(self.scores(characters).transpose(1, 2), tags, ignore_index=IGNORE)


class TagAccuracy:
    """The share of characters with the right tag in held-out addresses."""

    def __init__(self, held_out):
        self.batch = pad(held_out)

    @torch.no_grad()
    def __call__(self, model):
        model.eval()
        given = self.batch["tags"] != IGNORE
        right = model.scores(self.batch["characters"]).argmax(-1) == self.batch["tags"]
        return right[given].float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--addresses", type=int, default=264)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    loader = DataLoader(examples(options.addresses, options.seed), batch_size=24, shuffle=True, collate_fn=pad)
    arguments = FitArguments(num_epochs=options.epochs, lr=2e-2, accumulation=options.accumulation)
    metric = TagAccuracy(examples(80, options.seed + 1))
    model = Fitter(AddressTagger(), arguments, loader, metric).fit()
    print(f"final accuracy {metric(model):.3f}")


if __name__ == "__main__":
    main()
