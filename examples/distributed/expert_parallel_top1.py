"""A Switch-style language model whose experts live on different ranks, while all other layers are data parallel."""

import argparse
import time
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    epochs: int = 4
    batch_size: int = 16  # per rank
    d_model: int = 48
    n_layers: int = 2
    experts_per_rank: int = 2
    lr: float = 5e-3
    balance_weight: float = 0.01
    seed: int = 0


class DialectCorpus(Dataset):
    """Token sequences from a few Markov chains, one chain per sequence."""

    vocab_size = 24

    def __init__(self, n_sequences, length, seed):
        language = torch.Generator().manual_seed(7)  # the chains are the same for every split
        chains = (2.5 * torch.randn(3, self.vocab_size, self.vocab_size, generator=language)).softmax(-1)
        generator = torch.Generator().manual_seed(seed)
        chain = chains[torch.randint(len(chains), (n_sequences,), generator=generator)]
        tokens = [torch.randint(self.vocab_size, (n_sequences,), generator=generator)]
        for _ in range(length):
            probabilities = chain[torch.arange(n_sequences), tokens[-1]]
            tokens.append(torch.multinomial(probabilities, 1, generator=generator).squeeze(1))
        self.tokens = torch.stack(tokens, dim=1)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class AllToAll(torch.autograd.Function):
    """Part i of the first dimension goes to rank i; on the way back the gradients take the same road."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class SwitchFeedForward(nn.Module):
    def __init__(self, dim, experts_per_rank):
        super().__init__()
        self.world = dist.get_world_size()
        self.n_local = experts_per_rank
        self.n_experts = self.world * experts_per_rank
        self.router = nn.Linear(dim, self.n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(experts_per_rank))
        self.balance_loss = None

    def expert_capacity(self, assigned):
        """Room for the fullest expert of any rank: no token is dropped, and all messages have one size."""
        fullest = assigned.sum(dim=0).max()
        dist.all_reduce(fullest, op=dist.ReduceOp.MAX)
        return int(fullest)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        probs = self.router(tokens).softmax(dim=-1)
        gate, chosen = probs.max(dim=-1)
        assigned = F.one_hot(chosen, self.n_experts)
        load = assigned.float().mean(dim=0)
        self.balance_loss = self.n_experts * (load * probs.mean(dim=0)).sum()

        capacity = self.expert_capacity(assigned)
        position = (assigned.cumsum(dim=0) * assigned).sum(dim=-1) - 1
        slot = chosen * capacity + position

        buffer = tokens.new_zeros(self.n_experts * capacity, tokens.size(-1)).index_copy(0, slot, tokens)
        arrived = AllToAll.apply(buffer).view(self.world, self.n_local, capacity, -1)
        done = torch.stack([expert(arrived[:, i]) for i, expert in enumerate(self.experts)], dim=1)
        returned = AllToAll.apply(done.flatten(0, 2))
        return (gate.unsqueeze(-1) * returned[slot]).view_as(x)


class DecoderLayer(nn.Module):
    def __init__(self, dim, experts_per_rank, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.switch = SwitchFeedForward(dim, experts_per_rank)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.switch(self.norm2(x))


class SwitchLM(nn.Module):
    def __init__(self, config, vocab_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            DecoderLayer(config.d_model, config.experts_per_rank) for _ in range(config.n_layers)
        )
        self.norm = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.unembed(self.norm(x)), sum(layer.switch.balance_loss for layer in self.layers)


def split_parameters(model):
    expert = [p for name, p in model.named_parameters() if ".experts." in name]
    dense = [p for name, p in model.named_parameters() if ".experts." not in name]
    return dense, expert


def synchronize_gradients(dense, expert):
    """The objective is the mean of the ranks' losses: dense gradients are averaged in one message. An expert has
    already seen the tokens of all ranks, and its gradient only lacks the division."""
    flat = torch.cat([p.grad.flatten() for p in dense])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, grad in zip(dense, flat.split([p.numel() for p in dense]), strict=True):
        p.grad.copy_(grad.view_as(p))
    for p in expert:
        p.grad /= dist.get_world_size()


def train_one_epoch(model, loader, optimizer, scheduler, config):
    dense, expert = split_parameters(model)
    model.train()
    total = torch.zeros(())
    for tokens, labels in loader:
        logits, balance = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        (loss + config.balance_weight * balance).backward()
        synchronize_gradients(dense, expert)
        optimizer.step()
        scheduler.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(loader) / dist.get_world_size()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = torch.zeros(2)
    for tokens, labels in loader:
        logits, _ = model(tokens)
        total[0] += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        total[1] += labels.numel()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main(config):
    torch.manual_seed(config.seed + dist.get_rank())  # experts differ from rank to rank
    model = SwitchLM(config, DialectCorpus.vocab_size)
    dense, _ = split_parameters(model)
    for p in dense:
        dist.broadcast(p.data, src=0)

    train_set = DialectCorpus(320, 24, seed=config.seed + 1)
    val_set = DialectCorpus(64, 24, seed=config.seed + 2)
    sampler = DistributedSampler(train_set, shuffle=True, seed=config.seed, drop_last=True)
    train_loader = DataLoader(train_set, config.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, 32, sampler=DistributedSampler(val_set, shuffle=False))

    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    total_steps = config.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config.lr, total_steps=total_steps)
    for epoch in range(config.epochs):
        sampler.set_epoch(epoch)
        train_loss = train_one_epoch(model, train_loader, optimizer, scheduler, config)
        val_loss = validate(model, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: train loss {train_loss:.4f}, val loss {val_loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for field in fields(Config):
        parser.add_argument("--" + field.name.replace("_", "-"), type=field.type, default=field.default)
    cli_config = Config(**vars(parser.parse_args()))
    dist.init_process_group("gloo")
    main(cli_config)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
