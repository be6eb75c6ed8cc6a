"""A small GPT in the manner of Megatron learns to add: heads, MLPs and vocabulary are split over the ranks."""

import argparse
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

CHARS = "0123456789+=;"


@dataclass
class GPTConfig:
    vocab_size: int = 16  # the characters, padded to a number that splits evenly
    seq_length: int = 36
    num_layers: int = 2
    hidden_size: int = 64
    num_attention_heads: int = 4
    hidden_dropout: float = 0.05
    init_std: float = 0.05


# ---- regions: how activations enter and leave the parts of the model that are split


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_):
        return input_.view_as(input_)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_):
        output = input_.contiguous().clone()
        dist.all_reduce(output)
        return output

    @staticmethod
    def backward(ctx, grad):
        return grad


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_):
        parts = [torch.empty_like(input_) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, input_.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()


# ---- layers


def sharded_parameter(rows, cols, std, dim):
    """Draws the whole matrix, alike on all ranks, and keeps this rank's slice of it."""
    whole = torch.empty(rows, cols).normal_(std=std)
    param = nn.Parameter(whole.chunk(dist.get_world_size(), dim=dim)[dist.get_rank()].clone())
    param.tensor_model_parallel = True
    return param


class ColumnParallelLinear(nn.Module):
    def __init__(self, input_size, output_size, std):
        super().__init__()
        self.weight = sharded_parameter(output_size, input_size, std, dim=0)
        self.bias = nn.Parameter(torch.zeros(self.weight.size(0)))
        self.bias.tensor_model_parallel = True

    def forward(self, x):
        return F.linear(_Copy.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, input_size, output_size, std):
        super().__init__()
        self.weight = sharded_parameter(output_size, input_size, std, dim=1)
        self.bias = nn.Parameter(torch.zeros(output_size))  # replicated

    def forward(self, x):
        return _Reduce.apply(F.linear(x, self.weight)) + self.bias


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocab_size, hidden_size, std):
        super().__init__()
        self.weight = sharded_parameter(vocab_size, hidden_size, std, dim=0)
        self.start = dist.get_rank() * self.weight.size(0)

    def forward(self, ids):
        local = ids - self.start
        outside = (local < 0) | (local >= self.weight.size(0))
        vectors = F.embedding(local.masked_fill(outside, 0), self.weight)
        return _Reduce.apply(vectors.masked_fill(outside.unsqueeze(-1), 0.0))


class ParallelAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.head_dim = cfg.hidden_size // cfg.num_attention_heads
        self.local_heads = cfg.num_attention_heads // dist.get_world_size()
        self.query_key_value = ColumnParallelLinear(cfg.hidden_size, 3 * cfg.hidden_size, cfg.init_std)
        self.dense = RowParallelLinear(cfg.hidden_size, cfg.hidden_size, cfg.init_std / math.sqrt(2 * cfg.num_layers))

    def forward(self, x):
        b, s, _ = x.shape
        # the rows are ordered head by head, so that a slice of them is a number of whole heads
        mixed = self.query_key_value(x).view(b, s, self.local_heads, 3 * self.head_dim).transpose(1, 2)
        query, key, value = mixed.chunk(3, dim=-1)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.dense(context.transpose(1, 2).reshape(b, s, self.local_heads * self.head_dim))


class ParallelTransformerLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(cfg.hidden_size)
        self.attention = ParallelAttention(cfg)
        self.post_attention_layernorm = nn.LayerNorm(cfg.hidden_size)
        self.h_to_4h = ColumnParallelLinear(cfg.hidden_size, 4 * cfg.hidden_size, cfg.init_std)
        self.four_h_to_h = RowParallelLinear(
            4 * cfg.hidden_size, cfg.hidden_size, cfg.init_std / math.sqrt(2 * cfg.num_layers)
        )
        self.dropout = nn.Dropout(cfg.hidden_dropout)  # on whole activations: all ranks draw the same mask

    def forward(self, x):
        x = x + self.dropout(self.attention(self.input_layernorm(x)))
        return x + self.dropout(self.four_h_to_h(F.gelu(self.h_to_4h(self.post_attention_layernorm(x)))))


class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(cfg.vocab_size, cfg.hidden_size, cfg.init_std)
        self.position_embeddings = nn.Parameter(torch.empty(cfg.seq_length, cfg.hidden_size).normal_(std=cfg.init_std))
        self.layers = nn.ModuleList(ParallelTransformerLayer(cfg) for _ in range(cfg.num_layers))
        self.final_layernorm = nn.LayerNorm(cfg.hidden_size)
        for param in self.parameters():
            if not hasattr(param, "tensor_model_parallel"):
                param.tensor_model_parallel = False

    def forward(self, ids):
        x = self.word_embeddings(ids) + self.position_embeddings[: ids.size(1)]
        for layer in self.layers:
            x = layer(x)
        local_logits = F.linear(_Copy.apply(self.final_layernorm(x)), self.word_embeddings.weight)
        return _Gather.apply(local_logits)


# ---- training


def clip_grad_norm(parameters, max_norm):
    """Clips by the norm of the whole model, to which every rank adds its slices and rank 0 what is replicated."""
    parameters = [p for p in parameters if p.grad is not None]
    counted = [p.grad for p in parameters if p.tensor_model_parallel or dist.get_rank() == 0]
    squares = torch.stack([g.square().sum() for g in counted]).sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for p in parameters:
        p.grad.mul_(factor)
    return norm.item()


def get_batch(generator, batch_size, length):
    """Rank 0 makes up a batch of texts like `7+15=22;` and sends it to the others."""
    batch = torch.empty(batch_size, length + 1, dtype=torch.long)
    if dist.get_rank() == 0:
        for row in batch:
            a, b = torch.randint(0, 20, (2, length), generator=generator).tolist()
            text = "".join(f"{i}+{j}={i + j};" for i, j in zip(a, b, strict=True))
            row.copy_(torch.tensor([CHARS.index(c) for c in text[: length + 1]]))
    dist.broadcast(batch, src=0)
    return batch[:, :-1], batch[:, 1:]


def loss_func(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def evaluate(model, args, length):
    model.eval()
    generator = torch.Generator().manual_seed(args.seed + 1000)
    ids, labels = get_batch(generator, 64, length)
    loss = loss_func(model(ids), labels).item()
    model.train()
    return loss


def lr_factor(args):
    def factor(step):
        if step < args.warmup:
            return (step + 1) / args.warmup
        progress = (step - args.warmup) / max(1, args.train_iters - args.warmup)
        return 0.1 + 0.45 * (1.0 + math.cos(math.pi * progress))

    return factor


def main(args):
    torch.manual_seed(args.seed)
    cfg = GPTConfig()
    model = GPTModel(cfg)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor(args))
    data_generator = torch.Generator().manual_seed(args.seed)

    model.train()
    for iteration in range(1, args.train_iters + 1):
        ids, labels = get_batch(data_generator, args.batch_size, cfg.seq_length)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_func(model(ids), labels)
        loss.backward()
        grad_norm = clip_grad_norm(model.parameters(), args.clip_grad)
        optimizer.step()
        scheduler.step()
        if iteration % args.log_interval == 0:
            val_loss = evaluate(model, args, cfg.seq_length)
            if dist.get_rank() == 0:
                print(
                    f"iteration {iteration:3d} | lm loss {loss.item():.4f} | val loss {val_loss:.4f} "
                    f"| grad norm {grad_norm:.3f} | lr {scheduler.get_last_lr()[0]:.2e}"
                )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mp_rank_{dist.get_rank():02d}.pt"  # a file per rank, with its slices
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(state | {"iteration": args.train_iters, "rng": torch.get_rng_state()}, path)
        restored = GPTModel(cfg)
        restored.load_state_dict(torch.load(path)["model"])
    val_loss = evaluate(restored, args, cfg.seq_length)
    if dist.get_rank() == 0:
        print(f"restored from {dist.get_world_size()} files: val loss {val_loss:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-iters", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1234)
    arguments = parser.parse_args()
    dist.init_process_group(backend="gloo")
    main(arguments)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
