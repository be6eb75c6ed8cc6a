"""Find promoters in DNA with a gated MLP whose large weights are sharded over two processes."""

import argparse
import time

import torch
import torch.distributed as dist
from genome import LENGTH, sequence_reads
from startvalues import StartConfig, init_weights
from torch import nn
from torch.nn import functional as F
from weightshards import ShardedLinear, average_gradients


class SpatialGate(nn.Module):
    """Multiplies one half of the channels by a mixture over positions of the other half."""

    def __init__(self, channels, length):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Conv1d(length, length, kernel_size=1)

    def forward(self, x):
        kept, gate = x.chunk(2, dim=-1)
        return kept * (1 + self.mix(self.norm(gate)))


class GatedBlock(nn.Module):
    def __init__(self, width, inner, length):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = ShardedLinear(width, inner)
        self.gate = SpatialGate(inner // 2, length)
        self.leave = ShardedLinear(inner // 2, width)

    def forward(self, x):
        return x + self.leave(self.gate(F.gelu(self.enter(self.norm(x)))))


class PromoterFinder(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.config = StartConfig(initializer_range=0.04, layers=layers)
        self.bases = nn.Embedding(4, width)
        self.windows = nn.Conv1d(width, width, kernel_size=7, padding=3)
        self.blocks = nn.Sequential(*(GatedBlock(width, 4 * width, LENGTH // 2) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.verdict = nn.Linear(width, 1)
        init_weights(self, self.config)

    def forward(self, reads):
        x = self.windows(self.bases(reads).transpose(1, 2))
        x = self.blocks(F.max_pool1d(x, 2).transpose(1, 2))
        return self.verdict(self.norm(x).amax(dim=1)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = PromoterFinder(args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    reader = torch.Generator().manual_seed(args.seed + 10 * (rank + 1))

    model.train()
    for step in range(1, args.steps + 1):
        reads, labels = sequence_reads(args.batch_size, reader)
        loss = F.binary_cross_entropy_with_logits(model(reads), labels)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

    model.eval()
    with torch.no_grad():
        reads, labels = sequence_reads(128, reader)
        right = ((model(reads) > 0) == labels.bool()).float().mean()
        dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy {right.item() / dist.get_world_size():.1%}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
