"""Tensor parallelism with DTensor: parallelize_module splits a small Llama-like model that continues number series."""

# torchrun --standalone --nproc-per-node 2 dtensor_tp.py

import argparse
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCAB_SIZE = 32
SEQ_LEN = 24
DIM = 64
N_HEADS = 4
N_LAYERS = 2
BATCH_SIZE = 32
LR = 4e-3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(DIM, DIM, bias=False)
        self.wk = nn.Linear(DIM, DIM, bias=False)
        self.wv = nn.Linear(DIM, DIM, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        # -1 heads: all of them in the whole model, a part of them where the projections are split
        q, k, v = (w(x).unflatten(-1, (-1, DIM // N_HEADS)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.w1 = nn.Linear(DIM, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, DIM, bias=False)
        self.w3 = nn.Linear(DIM, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.feed_forward = FeedForward(hidden_dim=160)
        self.attention_norm = nn.RMSNorm(DIM, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(DIM, eps=1e-5)

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB_SIZE, DIM)
        self.pos_embeddings = nn.Embedding(SEQ_LEN, DIM)
        self.layers = nn.ModuleList(TransformerBlock() for _ in range(N_LAYERS))
        self.norm = nn.RMSNorm(DIM, eps=1e-5)
        self.output = nn.Linear(DIM, VOCAB_SIZE, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens) + self.pos_embeddings(torch.arange(tokens.size(1)))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h)).float()


def apply_tp(model, mesh):
    for block in model.layers:
        plan = {
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(block, mesh, plan)
    return model


def sample_series(generator, n):
    """Series that go up by a number of their own, modulo the size of the vocabulary."""
    start = torch.randint(VOCAB_SIZE, (n, 1), generator=generator)
    stride = torch.randint(1, 4, (n, 1), generator=generator)
    series = (start + stride * torch.arange(SEQ_LEN + 1)) % VOCAB_SIZE
    return series[:, :-1], series[:, 1:]


def build(seed, mesh):
    torch.manual_seed(seed)  # alike on all ranks, as is the data
    model = apply_tp(Transformer(), mesh["tp"])
    return model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, foreach=False)


@torch.no_grad()
def accuracy(model, tokens, labels):
    model.eval()
    right = (model(tokens).argmax(-1) == labels)[:, 1:].float().mean().item()
    model.train()
    return right


def save(model, optimizer, folder):
    """Each rank writes its part of what is split; of what all ranks hold whole, one copy is kept."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)


def restore(model, optimizer, folder):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main(seed, steps):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model, optimizer = build(seed, mesh)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=5)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, end_factor=0.1, start_factor=1.0, total_iters=steps - 5)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[5])

    generator = torch.Generator().manual_seed(seed)
    val_tokens, val_labels = sample_series(generator, 64)
    model.train()
    for step in range(1, steps + 1):
        tokens, labels = sample_series(generator, BATCH_SIZE)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            right = accuracy(model, val_tokens, val_labels)
            if dist.get_rank() == 0:
                print(f"step {step:3d}  loss {loss.item():.4f}  val accuracy {right:.3f}")

    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    save(model, optimizer, shared[0])
    restored, restored_optimizer = build(seed + 1, mesh)  # other weights, to be replaced
    restore(restored, restored_optimizer, shared[0])
    right = accuracy(restored, val_tokens, val_labels)
    if dist.get_rank() == 0:
        print(f"restored  val accuracy {right:.3f}")
    dist.barrier()  # nobody removes it before all have read
    if dist.get_rank() == 0:
        shutil.rmtree(shared[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    main(args.seed, args.steps)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
