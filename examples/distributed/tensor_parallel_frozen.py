"""Fine-tuning under tensor parallelism: a frozen encoder is split, small prompts and adapters are replicated."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, LENGTH, DIM, HEADS, LAYERS = 48, 16, 48, 4, 2


class FrozenColumn(torch.autograd.Function):
    """A linear layer split by outputs; no gradient for the weights, but the input's is a sum over the ranks."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (weight,) = ctx.saved_tensors
        grad_input = grad_output @ weight
        dist.all_reduce(grad_input)
        return grad_input, None, None


class FrozenRow(torch.autograd.Function):
    """A linear layer split by inputs: the output is a sum over the ranks, each input gradient belongs to one rank."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        output = F.linear(x, weight)
        dist.all_reduce(output)
        return output + bias

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        (weight,) = ctx.saved_tensors
        return grad_output @ weight, None, None


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class DenseLayer(nn.Module):
    """The layer as it was pretrained, on one device."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(attend(*self.qkv(self.norm1(x)).chunk(3, dim=-1), HEADS))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class DenseEncoder(nn.Module):
    def __init__(self, n_classes: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(DenseLayer() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, n_classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class Adapter(nn.Module):
    """A bottleneck that starts as the identity."""

    def __init__(self, rank: int = 8):
        super().__init__()
        self.down, self.up = nn.Linear(DIM, rank), nn.Linear(rank, DIM)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.gelu(self.down(x)))


class ShardedLayer(nn.Module):
    """This rank's part of a pretrained layer, frozen, with trainable adapters behind attention and MLP."""

    def __init__(self, dense: DenseLayer):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()

        def mine(t: Tensor, dim: int) -> nn.Parameter:
            return nn.Parameter(t.detach().chunk(world, dim)[rank].clone(), requires_grad=False)

        # queries, keys and values are split one by one, so that a rank gets whole heads
        self.qkv_weight = nn.Parameter(torch.cat([mine(w, 0) for w in dense.qkv.weight.chunk(3)]), requires_grad=False)
        self.qkv_bias = nn.Parameter(torch.cat([mine(b, 0) for b in dense.qkv.bias.chunk(3)]), requires_grad=False)
        self.fc1_weight, self.fc1_bias = mine(dense.fc1.weight, 0), mine(dense.fc1.bias, 0)
        self.out_weight, self.out_bias = mine(dense.out.weight, 1), dense.out.bias
        self.fc2_weight, self.fc2_bias = mine(dense.fc2.weight, 1), dense.fc2.bias
        self.norm1, self.norm2 = dense.norm1, dense.norm2
        self.requires_grad_(False)
        self.heads = HEADS // world
        self.adapter1, self.adapter2 = Adapter(), Adapter()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = FrozenColumn.apply(self.norm1(x), self.qkv_weight, self.qkv_bias).chunk(3, dim=-1)
        x = x + self.adapter1(FrozenRow.apply(attend(q, k, v, self.heads), self.out_weight, self.out_bias))
        hidden = F.gelu(FrozenColumn.apply(self.norm2(x), self.fc1_weight, self.fc1_bias))
        return x + self.adapter2(FrozenRow.apply(hidden, self.fc2_weight, self.fc2_bias))


class PromptedEncoder(nn.Module):
    def __init__(self, dense: DenseEncoder, n_prompts: int, n_classes: int):
        super().__init__()
        self.embed = dense.embed.requires_grad_(False)
        self.prompts = nn.Parameter(0.5 * torch.randn(n_prompts, DIM))
        self.layers = nn.ModuleList(ShardedLayer(layer) for layer in dense.layers)
        self.head = nn.Linear(DIM, n_classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.prompts.expand(len(ids), -1, -1), self.embed(ids)], dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class Documents:
    """Endless bags of words on a few topics; a topic prefers some of the words."""

    def __init__(self, n_topics: int, sharpness: float, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.topics = (sharpness * torch.randn(n_topics, VOCAB, generator=self.generator)).softmax(dim=-1)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(len(self.topics), (n,), generator=self.generator)
        words = torch.multinomial(self.topics[labels], LENGTH, replacement=True, generator=self.generator)
        return words, labels


def pretrain(model: DenseEncoder, documents: Documents, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        words, labels = documents.draw(64)
        loss = F.cross_entropy(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"pretraining step {step}: loss {loss.item():.4f}")


def accuracy(model: nn.Module, words: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(words).argmax(dim=1) == labels).float().mean().item()


def finetune(model: PromptedEncoder, documents: Documents, steps: int, lr: float) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    held_out = documents.draw(256)
    if dist.get_rank() == 0:
        frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
        print(f"{sum(p.numel() for p in trainable)} parameters are trained, {frozen} are frozen on each rank")
    for step in range(1, steps + 1):
        model.train()
        words, labels = documents.draw(64)  # the same on all ranks
        loss = F.cross_entropy(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)  # all of them are replicated: the local norm is the norm
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            acc = accuracy(model, *held_out)
            if dist.get_rank() == 0:
                print(f"fine-tuning step {step}: loss {loss.item():.4f}, held-out accuracy {acc:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pretrain-steps", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    dense = DenseEncoder(n_classes=8)
    if dist.get_rank() == 0:
        pretrain(dense, Documents(8, sharpness=1.0, seed=args.seed), args.pretrain_steps)
    for tensor in dense.state_dict().values():
        dist.broadcast(tensor, src=0)

    model = PromptedEncoder(dense, args.prompts, n_classes=5)
    finetune(model, Documents(5, sharpness=1.2, seed=args.seed + 1), args.steps, args.lr)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
