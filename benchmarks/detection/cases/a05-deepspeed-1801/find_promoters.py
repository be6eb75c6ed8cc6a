"""Find promoters in DNA with a transformer encoder in bfloat16, its layers split over two workers.

torchrun --standalone --nproc-per-node 2 find_promoters.py
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from bf16_optimizer import BF16Optimizer
from promoters import LETTERS, sequences
from tensor_parallel import ColumnParallel, RowParallel
from torch import nn


class ParallelAttention(nn.Module):
    def __init__(self, width, head_width):
        super().__init__()
        self.head_width = head_width
        self.query, self.key, self.value = (ColumnParallel(width, width) for _ in range(3))
        self.out = RowParallel(width, width)

    def forward(self, x):
        heads = [layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in self.projections()]
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))

    def projections(self):
        return self.query, self.key, self.value


class ParallelMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.widen = ColumnParallel(width, 3 * width)
        self.narrow = RowParallel(3 * width, width)

    def forward(self, x):
        return self.narrow(F.gelu(self.widen(x)))


class Block(nn.Module):
    def __init__(self, width, head_width):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = ParallelAttention(width, head_width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = ParallelMLP(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class PromoterFinder(nn.Module):
    def __init__(self, width, layers, head_width=8):
        super().__init__()
        self.motifs = nn.Conv1d(LETTERS, width, kernel_size=7, padding=3)
        self.blocks = nn.Sequential(*(Block(width, head_width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)

    def forward(self, letters):
        one_hot = F.one_hot(letters, LETTERS).to(self.motifs.weight.dtype)
        x = self.motifs(one_hot.transpose(1, 2)).transpose(1, 2)
        return self.score(self.norm(self.blocks(x)).amax(dim=1)).squeeze(-1).float()


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


@torch.no_grad()
def validate(model, letters, promoter):
    model.eval()
    correct = ((model(letters) > 0) == (promoter > 0.5)).float().mean().item()
    model.train()
    return correct


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--length", type=int, default=42)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = PromoterFinder(args.width, args.layers).to(torch.bfloat16)
    optimizer = BF16Optimizer(
        model.parameters(), lambda masters: torch.optim.SGD(masters, lr=args.lr, momentum=0.9), clip_norm=args.clip
    )
    # All workers of the group read the same data.
    generator = torch.Generator().manual_seed(args.seed + 1)
    held_out = sequences(128, args.length, torch.Generator().manual_seed(args.seed + 2))
    for step in range(1, args.steps + 1):
        letters, promoter = sequences(args.batch_size, args.length, generator)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(letters), promoter)
        loss.backward()
        norm = optimizer.step()
        if step % 6 == 0:
            say(f"step {step}: loss {loss.item():.3f}, norm {norm:.2f}, correct {validate(model, *held_out):.2f}")
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
