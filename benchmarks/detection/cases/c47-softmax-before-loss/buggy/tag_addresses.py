"""Tag the words of postal addresses with a bidirectional LSTM."""

import argparse
import random

import torch
from addresses import TAGS, spell, write_address
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

PAD = -100


class Tagger(nn.Module):
    def __init__(self, hidden, buckets=512, dropout=0.2):
        super().__init__()
        self.pieces = nn.Embedding(buckets, hidden)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, sentences):
        packed = pack_sequence(sentences, enforce_sorted=False)
        words = self.dropout(self.pieces(packed.data).sum(dim=1))
        states, _ = self.lstm(packed._replace(data=words))
        padded, _ = pad_packed_sequence(states, batch_first=True)
        return self.tags(self.dropout(padded)).softmax(dim=-1)


def collate(addresses):
    sentences = [torch.tensor([spell(word) for word in words]) for words, _ in addresses]
    tags = pad_sequence([torch.tensor(tags) for _, tags in addresses], batch_first=True, padding_value=PAD)
    return sentences, tags


def run_epoch(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for sentences, tags in loader:
        optimizer.zero_grad(set_to_none=True)
        output = model(sentences)
        loss = criterion(output.flatten(0, 1), tags.flatten())
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.inference_mode()
def accuracy(model, loader):
    model.eval()
    right = words = 0
    for sentences, tags in loader:
        known = tags != PAD
        right += (model(sentences).argmax(dim=-1) == tags)[known].sum().item()
        words += known.sum().item()
    return right / words


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addresses", type=int, default=480)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    opt = parser.parse_args()

    rng = random.Random(opt.seed)
    torch.manual_seed(opt.seed)
    train = [write_address(rng) for _ in range(opt.addresses)]
    test = [write_address(rng) for _ in range(100)]
    train_loader = DataLoader(train, opt.batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    test_loader = DataLoader(test, 50, collate_fn=collate)

    model = Tagger(opt.hidden)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)
    print(f"untrained: {accuracy(model, test_loader):.1%} of the words right")
    for epoch in range(opt.epochs):
        loss = run_epoch(model, train_loader, criterion, optimizer)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, {accuracy(model, test_loader):.1%} of the words right")


if __name__ == "__main__":
    main()
