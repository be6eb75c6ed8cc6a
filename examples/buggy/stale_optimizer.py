"""Bug: the optimizer is built before prepare() copies the model, so it steps a model that no batch ever reaches.

A text CNN learns which of three phrases a sequence of tokens contains.
"""

import argparse
import copy

import torch
import torch.nn as nn

VOCAB, LENGTH, CLASSES = 60, 32, 3
PHRASES = torch.tensor([[7, 21, 40], [21, 7, 40], [40, 21, 7]])


class TextCNN(nn.Module):
    def __init__(self, emb=32, channels=48, widths=(2, 3, 4)):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb)
        self.convs = nn.ModuleList(nn.Conv1d(emb, channels, w) for w in widths)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(channels * len(widths), CLASSES)

    def forward(self, tokens):
        x = self.embedding(tokens).transpose(1, 2)
        pooled = [conv(x).relu().amax(dim=2) for conv in self.convs]
        return self.out(self.dropout(torch.cat(pooled, dim=1)))


def make_batch(size):
    tokens = torch.randint(VOCAB, (size, LENGTH))
    labels = torch.randint(CLASSES, (size,))
    starts = torch.randint(LENGTH - 3, (size, 1))
    tokens.scatter_(1, starts + torch.arange(3), PHRASES[labels])
    return tokens, labels


def prepare(model, device):
    """A copy of the model on the training device; the original stays as it is, to compare with."""
    return copy.deepcopy(model).to(device)


def accuracy(model, batch):
    tokens, labels = batch
    was_training = model.training
    model.eval()
    with torch.no_grad():
        result = (model(tokens).argmax(dim=1) == labels).float().mean().item()
    model.train(was_training)
    return result


def run(args):
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    initial = TextCNN()
    optimizer = torch.optim.AdamW(initial.parameters(), lr=args.lr)
    model = prepare(initial, device)
    loss_fn = nn.CrossEntropyLoss()
    held_out = make_batch(500)

    model.train()
    for step in range(1, args.steps + 1):
        tokens, labels = make_batch(args.batch_size)
        loss = loss_fn(model(tokens.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d} | loss {loss.item():.4f} | held-out accuracy {accuracy(model, held_out):.3f}")
    print(f"accuracy before {accuracy(initial, held_out):.3f}, after {accuracy(model, held_out):.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--device", default="cpu")
    p.add_argument("--seed", type=int, default=0)
    run(p.parse_args())
