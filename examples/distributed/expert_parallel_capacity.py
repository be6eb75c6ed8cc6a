"""GShard-style mixture of experts on digits: einsum dispatch, two experts per token, a capacity, an auxiliary loss."""

import argparse
import math
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class SwapRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blocks):
        swapped = torch.empty_like(blocks)
        dist.all_to_all_single(swapped, blocks)
        return swapped

    @staticmethod
    def backward(ctx, grad):
        return SwapRanks.apply(grad.contiguous())


def top2_gating(logits, capacity):
    """Returns combine weights of shape [tokens, experts, capacity], the dispatch mask, the auxiliary loss, and
    the share of assignments that found no room."""
    n_experts = logits.size(1)
    gates = logits.softmax(dim=1)
    first = F.one_hot(gates.argmax(dim=1), n_experts)
    second = F.one_hot(gates.masked_fill(first.bool(), 0.0).argmax(dim=1), n_experts)
    aux_loss = n_experts * (gates.mean(dim=0) * first.float().mean(dim=0)).sum()

    # first choices take their places before any second choice does; who comes too late is dropped
    place1 = first.cumsum(dim=0) - 1
    place2 = second.cumsum(dim=0) - 1 + first.sum(dim=0)
    kept1 = first * (place1 < capacity)
    kept2 = second * (place2 < capacity)
    dropped = 1.0 - (kept1.sum() + kept2.sum()).item() / (2 * len(logits))

    gate1 = (gates * kept1).sum(dim=1)
    gate2 = (gates * kept2).sum(dim=1)
    total = (gate1 + gate2).clamp(min=torch.finfo(gates.dtype).eps)
    slot1 = F.one_hot((place1 * kept1).sum(dim=1), capacity)
    slot2 = F.one_hot((place2 * kept2).sum(dim=1), capacity)
    combine = torch.einsum("s,se,sc->sec", gate1 / total, kept1.float(), slot1.float())
    combine = combine + torch.einsum("s,se,sc->sec", gate2 / total, kept2.float(), slot2.float())
    return combine, combine.detach() > 0, aux_loss, dropped


class MoELayer(nn.Module):
    def __init__(self, model_dim, hidden_dim, local_experts, capacity_factor):
        super().__init__()
        self.world_size = dist.get_world_size()
        self.num_experts = self.world_size * local_experts
        self.local_experts = local_experts
        self.capacity_factor = capacity_factor
        self.wg = nn.Parameter(torch.empty(model_dim, self.num_experts))
        self.wi = nn.Parameter(torch.empty(local_experts, model_dim, hidden_dim))
        self.wo = nn.Parameter(torch.empty(local_experts, hidden_dim, model_dim))
        self.wi.expert = self.wo.expert = True
        for weight in (self.wg, self.wi, self.wo):
            nn.init.normal_(weight, std=weight.size(-2) ** -0.5)
        self.l_aux = None
        self.dropped = 0.0

    def capacity(self, n_tokens):
        """One number for the whole group, since the last batches of the ranks may differ in size."""
        wanted = torch.tensor(math.ceil(2 * self.capacity_factor * n_tokens / self.num_experts))
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
        return int(wanted.item())

    def forward(self, x):
        tokens = x.reshape(-1, x.size(-1))
        capacity = self.capacity(len(tokens))
        combine, mask, self.l_aux, self.dropped = top2_gating(tokens @ self.wg, capacity)
        sent = torch.einsum("sec,sm->ecm", mask.to(tokens.dtype), tokens)
        received = SwapRanks.apply(sent).view(self.world_size, self.local_experts, capacity, -1)
        hidden = F.relu(torch.einsum("gecm,emh->gech", received, self.wi))
        result = torch.einsum("gech,ehm->gecm", hidden, self.wo)
        returned = SwapRanks.apply(result.reshape(self.num_experts, capacity, -1))
        return torch.einsum("sec,ecm->sm", combine, returned).view_as(x)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout, capacity_factor):
        super().__init__()
        self.self_attention = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.moe = MoELayer(dim, 2 * dim, local_experts=2, capacity_factor=capacity_factor)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        attended, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.norm1(x + self.dropout(attended))
        return self.norm2(x + self.dropout(self.moe(x)))


class RowClassifier(nn.Module):
    """Reads an 8x8 image as a sequence of eight rows."""

    def __init__(self, dim=48, num_layers=2, heads=4, dropout=0.1, capacity_factor=1.25):
        super().__init__()
        self.embed = nn.Linear(8, dim)
        self.position = nn.Parameter(0.1 * torch.randn(8, dim))
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, dropout, capacity_factor) for _ in range(num_layers))
        self.head = nn.Linear(8 * dim, 10)

    def forward(self, images):
        x = self.embed(images) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x.flatten(1))


def is_expert(param):
    return getattr(param, "expert", False)


def reduce_gradients(model):
    world_size = dist.get_world_size()
    for param in model.parameters():
        if param.grad is None:
            continue
        param.grad.div_(world_size)
        if not is_expert(param):
            dist.all_reduce(param.grad)


def digits_split(train):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target)
    keep = (torch.arange(len(labels)) % 6 == 0) ^ train
    return TensorDataset(images[keep], labels[keep])


def test(model, loader):
    model.eval()
    correct, seen = torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(dim=-1) == labels).sum()
            seen += len(labels)
    dist.all_reduce(correct)
    dist.all_reduce(seen)
    return (correct / seen).item()


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48, help="per rank")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--aux-coef", type=float, default=0.02)
    parser.add_argument("--capacity-factor", type=float, default=1.25)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed * world_size + rank)
    model = RowClassifier(capacity_factor=args.capacity_factor)
    for param in model.parameters():
        if not is_expert(param):
            dist.broadcast(param.data, src=0)

    train_set, test_set = digits_split(train=True), digits_split(train=False)
    train_sampler = DistributedSampler(train_set, world_size, rank, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, 256, sampler=DistributedSampler(test_set, world_size, rank, shuffle=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[args.epochs - 1], gamma=0.3)

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        losses, drops = [], []
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.05)
            aux = sum(layer.moe.l_aux for layer in model.layers)
            (loss + args.aux_coef * aux).backward()
            reduce_gradients(model)
            optimizer.step()
            losses.append(loss.item())
            drops.extend(layer.moe.dropped for layer in model.layers)
        scheduler.step()
        summary = torch.tensor([sum(losses) / len(losses), sum(drops) / len(drops)]) / world_size
        dist.all_reduce(summary)
        accuracy = test(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch}  loss {summary[0]:.4f}  dropped {summary[1]:.1%}  test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    main(sys.argv[1:])
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
