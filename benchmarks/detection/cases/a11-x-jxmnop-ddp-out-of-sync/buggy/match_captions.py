"""Contrastive training of two towers that match pictures and captions.

torchrun --standalone --nproc-per-node 2 match_captions.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from captions import LEXICON, SIDE, CaptionedPictures
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from towers import TwoTowers


class Trainer:
    def __init__(self, network, args):
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.02)
        pairs = CaptionedPictures(args.pairs, args.seed)
        self.sampler = DistributedSampler(pairs, seed=args.seed, drop_last=True)
        self.loader = DataLoader(pairs, args.batch_size, sampler=self.sampler, drop_last=True)
        self.held_out = next(iter(DataLoader(CaptionedPictures(64, args.seed + 9), 64)))
        self.epochs = args.epochs

    def loss(self, pictures, captions):
        match = self.model.module(pictures, captions)
        partner = torch.arange(len(match))
        return (cross_entropy(match, partner) + cross_entropy(match.T, partner)) / 2

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        losses = []
        for pictures, captions in self.loader:
            self.optimizer.zero_grad()
            loss = self.loss(pictures, captions)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def evaluate(self):
        """The mean rank of the right caption among those of all held-out pictures, 1 at best."""
        self.model.eval()
        match = self.model.module(*self.held_out)
        better = match > match.diag().unsqueeze(1)
        return 1 + better.sum(dim=1).float().mean().item()

    def fit(self):
        for epoch in range(self.epochs):
            loss, place = self.train_epoch(epoch), self.evaluate()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss:.3f}, right caption in place {place:.1f} of 64", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    Trainer(TwoTowers(SIDE, len(LEXICON) + 1), args).fit()
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
