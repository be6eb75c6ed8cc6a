"""Tell bird species by their calls: a two-way GRU with attention over time, on several workers without a wrapper.

torchrun --standalone --nproc-per-node 2 tag_bird_calls.py [name=value ...]
"""

import sys
import time
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from birdsong import BANDS, SPECIES, recordings
from ring import Ring, average_gradients
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_


@dataclass
class Options:
    calls: int = 480
    batch: int = 24
    epochs: int = 4
    hidden: int = 24
    lr: float = 8e-3
    max_norm: float = 0.8
    seed: int = 7

    @classmethod
    def from_words(cls, words):
        kinds = {field.name: type(field.default) for field in fields(cls)}
        given = dict(word.split("=", 1) for word in words)
        return cls(**{name: kinds[name](text) for name, text in given.items()})


class CallTagger(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.encoder = nn.GRU(BANDS, hidden, batch_first=True, bidirectional=True)
        self.attention = nn.Linear(2 * hidden, 1)
        self.classify = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.Tanh(), nn.Linear(hidden, len(SPECIES)))

    def forward(self, calls):
        states, _ = self.encoder(calls)
        weights = torch.softmax(self.attention(states), dim=1)
        return self.classify((weights * states).sum(dim=1))


def shuffled_batches(calls, species, size, generator):
    order = torch.randperm(len(calls), generator=generator)
    for chosen in order[: len(order) // size * size].split(size):
        yield calls[chosen], species[chosen]


@torch.no_grad()
def share_correct(model, calls, species):
    model.eval()
    right = (model(calls).argmax(dim=1) == species).float().mean()
    model.train()
    return right.item()


def run(options):
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = CallTagger(options.hidden)
    optimizer = torch.optim.NAdam(model.parameters(), lr=options.lr)
    ring = Ring()

    calls, species = recordings(options.calls, options.seed)
    mine, mine_species = calls[rank::workers], species[rank::workers]
    held_out = recordings(100, options.seed + 500)
    generator = torch.Generator().manual_seed(options.seed + rank)
    for epoch in range(1, options.epochs + 1):
        for batch, target in shuffled_batches(mine, mine_species, options.batch, generator):
            optimizer.zero_grad()
            loss = cross_entropy(model(batch), target)
            loss.backward()
            average_gradients(model, ring)
            clip_grad_norm_(model.parameters(), options.max_norm)
            optimizer.step()
        correct = share_correct(model, *held_out)
        if rank == 0:
            print(f"epoch {epoch}  loss {loss.item():.3f}  held out {correct:.2f}", flush=True)
    if rank == 0:
        print(f"{ring.calls} all-reduces of {ring.values // ring.calls} values", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(Options.from_words(sys.argv[1:]))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
