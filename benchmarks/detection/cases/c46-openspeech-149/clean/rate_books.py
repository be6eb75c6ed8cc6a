"""Predict how readers rate books with embeddings, their product, and a small network, trained on several workers.

torchrun --standalone --nproc-per-node 2 rate_books.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from library import BOOKS, GENRES, READERS, Ratings
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class RatingModel(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.reader = nn.Embedding(READERS, size)
        self.book = nn.Embedding(BOOKS, size)
        self.genre = nn.Embedding(GENRES, 4)
        self.deep = nn.Sequential(nn.Linear(2 * size + 5, 32), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
        for table in (self.reader, self.book):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, reader, age, book, genre):
        reader, book = self.reader(reader), self.book(book)
        deep = self.deep(torch.cat([reader, book, self.genre(genre), age.unsqueeze(1)], dim=1))
        return 3.0 + (reader * book).sum(dim=1) + deep.squeeze(1)


def validate(model, loader):
    model.eval()
    squares = 0.0
    with torch.no_grad():
        for *features, rating in loader:
            squares += (model.module(*features) - rating).square().sum().item()
    return (squares / len(loader.dataset)) ** 0.5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ratings", type=int, default=2400)
    parser.add_argument("--batch-size", type=int, default=80)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.08)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group(backend="gloo")
    torch.manual_seed(args.seed)
    train_set = Ratings(args.ratings, args.seed, part=0)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    validation = DataLoader(Ratings(500, args.seed, part=1), batch_size=250)

    model = DDP(RatingModel(args.size))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for *features, rating in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(*features), rating)
            loss.backward()
            optimizer.step()
        error = validate(model, validation)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, validation error {error:.3f} stars", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
