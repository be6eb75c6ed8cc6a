"""Two towers learn to match signals with descriptions, and the batches of all ranks serve as negatives."""

# torchrun --standalone --nproc-per-node 2 contrastive_ddp.py

import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

N_TRAITS, N_LEVELS, SIGNAL_DIM = 6, 8, 32


class GatherWithGrad(torch.autograd.Function):
    """Concatenates the ranks' tensors; gradients find their way back to the rank that a row came from."""

    @staticmethod
    def forward(ctx, x):
        gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, x.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


class SignalTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SIGNAL_DIM, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, dim))

    def forward(self, signals):
        return self.net(signals)


class DescriptionTower(nn.Module):
    """Embeds the words, lets them attend to each other, and takes their mean."""

    def __init__(self, dim, width=64):
        super().__init__()
        self.words = nn.Embedding(N_TRAITS * N_LEVELS, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, num_heads=4, batch_first=True)
        self.project = nn.Linear(width, dim, bias=False)

    def forward(self, words):
        x = self.words(words)
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return self.project(x.mean(dim=1))


class TwoTowers(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.signal_tower = SignalTower(dim)
        self.description_tower = DescriptionTower(dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, signals, words):
        signal_features = F.normalize(self.signal_tower(signals), dim=-1)
        word_features = F.normalize(self.description_tower(words), dim=-1)
        return signal_features, word_features, self.logit_scale.exp()


def contrastive_loss(signal_features, word_features, scale):
    """Own rows against the columns of all ranks; the mean over ranks is the loss of the global batch."""
    all_signals = GatherWithGrad.apply(signal_features)
    all_words = GatherWithGrad.apply(word_features)
    n = len(signal_features)
    target = torch.arange(n) + n * dist.get_rank()
    loss_signals = F.cross_entropy(scale * signal_features @ all_words.t(), target)
    loss_words = F.cross_entropy(scale * word_features @ all_signals.t(), target)
    return (loss_signals + loss_words) / 2


def make_pairs(n, seed):
    """Traits on a scale; the signal mixes them with noise, the description names the level of each in any order."""
    world = torch.Generator().manual_seed(0)
    mixing = torch.randn(N_TRAITS, SIGNAL_DIM, generator=world)
    g = torch.Generator().manual_seed(seed)
    traits = torch.rand(n, N_TRAITS, generator=g)
    signals = torch.tanh((2 * traits - 1) @ mixing) + 0.05 * torch.randn(n, SIGNAL_DIM, generator=g)
    words = (traits * N_LEVELS).long() + N_LEVELS * torch.arange(N_TRAITS)
    order = torch.rand(n, N_TRAITS, generator=g).argsort(dim=1)
    return TensorDataset(signals, words.gather(1, order))


def gather(features):
    """Without gradients, for evaluation."""
    parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features)
    return torch.cat(parts)


@torch.no_grad()
def recall_at_1(model, dataset):
    """How often the description nearest to a signal is its own, among those of all ranks."""
    model.eval()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    signals, words = (t[rank::world_size].contiguous() for t in dataset.tensors)
    signal_features, word_features, _ = model(signals, words)
    signal_features, word_features = gather(signal_features), gather(word_features)
    nearest = (signal_features @ word_features.t()).argmax(dim=1)
    model.train()
    return (nearest == torch.arange(len(nearest))).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    train_set, val_set = make_pairs(1536, args.seed + 1), make_pairs(256, args.seed + 1001)
    sampler = DistributedSampler(train_set, seed=args.seed, drop_last=True)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)

    torch.manual_seed(args.seed)
    model = DistributedDataParallel(TwoTowers())
    # no weight decay for biases, norms and the temperature
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], args.lr
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))

    model.train()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for signals, words in loader:
            optimizer.zero_grad()
            loss = contrastive_loss(*model(signals, words))
            loss.backward()
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                model.module.logit_scale.clamp_(0.0, math.log(100.0))
            running += loss.detach()
        running /= len(loader)
        dist.all_reduce(running)
        recall = recall_at_1(model.module, val_set)
        if rank == 0:
            temperature = 1 / model.module.logit_scale.exp().item()
            mean_loss = running.item() / dist.get_world_size()
            print(f"epoch {epoch}: loss {mean_loss:.3f}, recall@1 {recall:.3f}, temperature {temperature:.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
