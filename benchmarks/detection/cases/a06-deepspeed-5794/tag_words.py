"""Tag the words of sentences with a mixture of experts that is spread over the workers.

torchrun --standalone --nproc-per-node 2 tag_words.py
"""

import argparse
import time
from itertools import chain

import torch
import torch.distributed as dist
import torch.nn.functional as F
from dispatch import Mailbox
from experts import ExpertLayer
from headlines import TAGS, WORDS, Newspaper
from torch import nn

LONGEST = 1024  # words that a worker reads at once, at most
WIDTH, HIDDEN = 24, 32


class Tagger(nn.Module):
    def __init__(self, local_experts):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(3 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.experts = ExpertLayer(WIDTH, HIDDEN, local_experts, Mailbox(local_experts * LONGEST * WIDTH))
        self.out = nn.Linear(WIDTH, len(TAGS))

    def forward(self, triples):
        x = self.norm(F.silu(self.mix(self.embed(triples).flatten(1))))
        return self.out(self.experts(x)), self.experts.balance(x)

    def shared(self):
        """The parameters that all workers hold; each of the others is on one worker only."""
        parts = (self.embed, self.mix, self.norm, self.experts.router, self.out)
        return list(chain.from_iterable(part.parameters() for part in parts))


class Training:
    def __init__(self, args):
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        self.model = Tagger(args.local_experts)
        torch.manual_seed(args.seed + self.rank)
        for expert in self.model.experts.experts:
            expert.layers.apply(lambda layer: hasattr(layer, "reset_parameters") and layer.reset_parameters())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.paper = Newspaper(10 * args.seed + self.rank, args.clauses)
        self.unseen = Newspaper(10 * args.seed + 5 + self.rank, args.clauses).page(args.sentences)
        self.sentences = args.sentences

    def step(self):
        triples, tags = self.paper.page(self.sentences)
        words = torch.tensor(float(len(tags)))
        dist.all_reduce(words)
        self.optimizer.zero_grad()
        scores, balance = self.model(triples)
        loss = F.cross_entropy(scores, tags, reduction="sum") / words
        (loss + 0.01 * balance / dist.get_world_size()).backward()
        for parameter in self.model.shared():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        return total.item()

    @torch.no_grad()
    def accuracy(self):
        triples, tags = self.unseen
        self.model.eval()
        right = (self.model(triples)[0].argmax(dim=1) == tags).sum()
        self.model.train()
        counts = torch.stack([right, torch.tensor(len(tags))])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=24)
    parser.add_argument("--clauses", type=int, default=4)
    parser.add_argument("--local-experts", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    training = Training(args)
    for step in range(1, args.steps + 1):
        loss = training.step()
        if step % 10 == 0:
            accuracy = training.accuracy()
            if training.rank == 0:
                print(f"step {step}: loss {loss:.3f}, {100 * accuracy:.1f} % of unseen words right", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
