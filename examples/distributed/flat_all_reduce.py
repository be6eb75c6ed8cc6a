"""An LSTM language model of nested brackets, whose gradients the ranks average in one flat buffer."""

# torchrun --standalone --nproc-per-node 2 flat_all_reduce.py

import argparse
import random
import time
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn as nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

OPENING, CLOSING = "([{<", ")]}>"
VOCAB = OPENING + CLOSING + "\n"


def get_args():
    parser = argparse.ArgumentParser(description=__doc__)
    group = parser.add_argument_group("training")
    group.add_argument("--train-iters", type=int, default=40)
    group.add_argument("--micro-batch-size", type=int, default=16)
    group.add_argument("--seq-length", type=int, default=32)
    group.add_argument("--lr", type=float, default=0.7)
    group.add_argument("--clip-grad", type=float, default=1.0)
    group.add_argument("--seed", type=int, default=1234)
    group = parser.add_argument_group("logging and validation")
    group.add_argument("--log-interval", type=int, default=10)
    group.add_argument("--eval-interval", type=int, default=20)
    group.add_argument("--eval-iters", type=int, default=3)
    return parser.parse_args()


def print_rank_0(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


# --------------------------------------------------------------------- data parallelism


class DataParallel(nn.Module):
    """Holds a replica of the module; `allreduce_params` is to be called between backward and step."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.world_size = dist.get_world_size()
        weights = [p.data for p in module.parameters()]
        flat = _flatten_dense_tensors(weights)
        dist.broadcast(flat, src=0)
        for weight, synced in zip(weights, _unflatten_dense_tensors(flat, weights), strict=True):
            weight.copy_(synced)

    def forward(self, *inputs):
        return self.module(*inputs)

    def allreduce_params(self):
        buckets = defaultdict(list)
        for param in self.module.parameters():
            if param.requires_grad and param.grad is not None:
                buckets[param.grad.dtype].append(param.grad)
        for grads in buckets.values():
            coalesced = _flatten_dense_tensors(grads)
            coalesced /= self.world_size
            dist.all_reduce(coalesced)
            for grad, synced in zip(grads, _unflatten_dense_tensors(coalesced, grads), strict=True):
                grad.copy_(synced)


# --------------------------------------------------------------------- model and data


class LSTMLM(nn.Module):
    def __init__(self, vocab_size, emb=24, hidden=96):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb)
        self.lstm = nn.LSTM(emb, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, vocab_size)

    def forward(self, tokens, labels):
        hidden, _ = self.lstm(self.embedding(tokens))
        logits = self.output(self.norm(hidden))
        return nn.functional.cross_entropy(logits.transpose(1, 2), labels)


def bracket_corpus(length, rng):
    """Well-formed lines of brackets; what closes is determined by what is open."""
    text, stack = [], []
    while len(text) < length:
        if stack and (len(stack) >= 4 or rng.random() < 0.6):
            text.append(CLOSING[OPENING.index(stack.pop())])
        elif not stack and text and text[-1] != "\n":
            text.append("\n")
        else:
            stack.append(rng.choice(OPENING))
            text.append(stack[-1])
    return torch.tensor([VOCAB.index(c) for c in text])


def batch_iterator(corpus, args):
    """Endless random batches; the ranks draw from disjoint parts of the corpus."""
    own = corpus.chunk(dist.get_world_size())[dist.get_rank()]
    generator = torch.Generator().manual_seed(args.seed + dist.get_rank())
    while True:
        starts = torch.randint(len(own) - args.seq_length, (args.micro_batch_size,), generator=generator)
        window = torch.stack([own[s : s + args.seq_length + 1] for s in starts.tolist()])
        yield window[:, :-1], window[:, 1:]


def reduce_loss(loss):
    reduced = loss.detach().clone()
    dist.all_reduce(reduced)
    return reduced.item() / dist.get_world_size()


# --------------------------------------------------------------------- training


def train_step(model, iterator, optimizer, args):
    tokens, labels = next(iterator)
    loss = model(tokens, labels)
    optimizer.zero_grad()
    loss.backward()
    model.allreduce_params()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
    optimizer.step()
    return loss, grad_norm


def evaluate(model, iterator, args):
    model.eval()
    total = torch.zeros(())
    with torch.no_grad():
        for _ in range(args.eval_iters):
            total += model(*next(iterator))
    model.train()
    return reduce_loss(total / args.eval_iters)


def pretrain(args):
    rng = random.Random(args.seed)
    train_iterator = batch_iterator(bracket_corpus(40_000, rng), args)
    valid_iterator = batch_iterator(bracket_corpus(8_000, rng), args)

    torch.manual_seed(args.seed + dist.get_rank())
    model = DataParallel(LSTMLM(len(VOCAB)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.train_iters)
    print_rank_0(f"parameters: {sum(p.numel() for p in model.parameters())}")

    model.train()
    for iteration in range(1, args.train_iters + 1):
        loss, grad_norm = train_step(model, train_iterator, optimizer, args)
        scheduler.step()
        if iteration % args.log_interval == 0:
            lm_loss = reduce_loss(loss)
            print_rank_0(f" iteration {iteration:4d} | lm loss: {lm_loss:.4f} | grad norm: {grad_norm:.3f}")
        if iteration % args.eval_interval == 0:
            valid_loss = evaluate(model, valid_iterator, args)
            print_rank_0(f" validation at iteration {iteration} | lm loss: {valid_loss:.4f}")


if __name__ == "__main__":
    arguments = get_args()
    dist.init_process_group(backend="gloo")
    pretrain(arguments)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
