"""Low-rank adapters: a small transformer learns upright digits, then its frozen weights are adapted to turned ones."""

import argparse
import math
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable low-rank update: W x + (alpha / r) B A x."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float = 0.0):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.scaling = alpha / rank
        self.dropout = nn.Dropout(dropout)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        update = F.linear(F.linear(self.dropout(x), self.lora_A), self.lora_B)
        return self.base(x) + self.scaling * update

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        self.base.weight += self.scaling * self.lora_B @ self.lora_A
        return self.base


class RowTransformer(nn.Module):
    """Reads an 8x8 image as a sequence of eight rows."""

    def __init__(self, dim=64, heads=4, depth=2, num_classes=10):
        super().__init__()
        self.embed = nn.Linear(8, dim)
        self.position = nn.Parameter(0.02 * torch.randn(8, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, num_classes)

    def forward(self, rows):
        x = self.embed(rows) + self.position
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x).mean(dim=1))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, dim) for _ in range(3))
        self.o_proj = nn.Linear(dim, dim)
        self.up_proj, self.down_proj = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (p(h).unflatten(2, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down_proj(F.silu(self.up_proj(self.norm2(x))))


def add_adapters(model, targets, rank, alpha, dropout=0.05):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, alpha, dropout))
    return model


def merge_adapters(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoRALinear):
                setattr(module, name, child.merge())
    return model


def adapter_state(model):
    return {name: tensor for name, tensor in model.state_dict().items() if "lora_" in name}


def train(model, optimizer, data, steps, batch_size, generator, tag):
    images, labels = data
    model.train()
    for step in range(1, steps + 1):
        index = torch.randint(len(images), (batch_size,), generator=generator)
        loss = F.cross_entropy(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"[{tag}] step {step:2d}  loss {loss.item():.4f}")


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    images, labels = data
    return (model(images).argmax(-1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where adapters and model are saved (default: a temporary directory)")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target)
    turned = torch.rot90(images, k=1, dims=(1, 2))
    upright_train, upright_test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    turned_train, turned_test = (turned[:1400], labels[:1400]), (turned[1400:], labels[1400:])

    model = RowTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    train(model, optimizer, upright_train, 40, 64, generator, "pretrain")
    print(f"base model: upright {accuracy(model, upright_test):.3f}, turned {accuracy(model, turned_test):.3f}")

    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), out / "base.pt")

        def fresh_adapted_model():
            base = RowTransformer()
            base.load_state_dict(torch.load(out / "base.pt", weights_only=True))
            adapted = add_adapters(base, ("embed", "q_proj", "v_proj", "up_proj", "down_proj"), args.rank, args.alpha)
            trainable = [p for p in adapted.parameters() if p.requires_grad]
            return adapted, torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.0)

        model, optimizer = fresh_adapted_model()
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"{trainable} of {sum(p.numel() for p in model.parameters())} parameters are trained")
        print(f"with new adapters: turned {accuracy(model, turned_test):.3f}")
        train(model, optimizer, turned_train, 20, 64, generator, "adapt")
        print(f"half-way: turned {accuracy(model, turned_test):.3f}")
        torch.save({"adapters": adapter_state(model), "optimizer": optimizer.state_dict()}, out / "adapters.pt")

        # later, from the base model and the small file
        model, optimizer = fresh_adapted_model()
        saved = torch.load(out / "adapters.pt", weights_only=True)
        missing, unexpected = model.load_state_dict(saved["adapters"], strict=False)
        assert not unexpected and not any("lora_" in name for name in missing)
        optimizer.load_state_dict(saved["optimizer"])
        print(f"resumed: turned {accuracy(model, turned_test):.3f}")
        train(model, optimizer, turned_train, 20, 64, generator, "adapt, resumed")
        print(f"adapted: turned {accuracy(model, turned_test):.3f}")

        torch.save(merge_adapters(model).state_dict(), out / "model.pt")
        plain = RowTransformer()
        plain.load_state_dict(torch.load(out / "model.pt", weights_only=True))
        print(f"merged into a plain model: turned {accuracy(plain, turned_test):.3f}")


if __name__ == "__main__":
    main()
