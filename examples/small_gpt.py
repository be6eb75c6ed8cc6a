"""A character-level GPT of about one million parameters, trained on sentences from a toy grammar."""

import math
import random
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn import functional as F

# data
n_sentences = 3000
# model
block_size = 32
n_layer = 5
n_head = 4
n_embd = 128
dropout = 0.1
# optimizer
batch_size = 8
max_iters = 60
learning_rate = 2e-3
min_lr_ratio = 0.1
warmup_iters = 10
weight_decay = 0.1
beta1, beta2 = 0.9, 0.99
grad_clip = 1.0
# system
eval_interval = 20
eval_iters = 3
device = "cuda" if torch.cuda.is_available() else "cpu"

random.seed(1337)
torch.manual_seed(1337)

# -----------------------------------------------------------------------------
# text

grammar = {
    "S": ["NP VP .", "NP VP and VP .", "when NP VP , NP VP ."],
    "NP": ["the N", "a N", "the A N", "every A N"],
    "VP": ["V NP", "V NP P NP", "sleeps", "waits P NP"],
    "N": ["cat", "dog", "river", "captain", "lantern", "stone", "garden"],
    "A": ["old", "quiet", "green", "tiny", "clever"],
    "V": ["sees", "follows", "paints", "finds", "forgets"],
    "P": ["near", "under", "behind", "with"],
}


def expand(symbol):
    if symbol not in grammar:
        return [symbol]
    return [word for part in random.choice(grammar[symbol]).split() for word in expand(part)]


text = "\n".join(" ".join(expand("S")) for _ in range(n_sentences))
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
itos = dict(enumerate(chars))
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
n = int(0.9 * len(data))
splits = {"train": data[:n], "val": data[n:]}


def get_batch(split):
    d = splits[split]
    ix = torch.randint(len(d) - block_size, (batch_size,))
    x = torch.stack([d[i : i + block_size] for i in ix])
    y = torch.stack([d[i + 1 : i + block_size + 1] for i in ix])
    return x.to(device), y.to(device)


# -----------------------------------------------------------------------------
# model


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -block_size:])
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
        return idx


model = GPT(len(chars)).to(device)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {len(data)} characters")

# -----------------------------------------------------------------------------
# optimizer

# matrices and embeddings are decayed, biases and layer norms are not
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(beta1, beta2),
)


def lr_lambda(it):
    if it < warmup_iters:
        return min(1.0, it / warmup_iters)
    progress = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr_ratio + 0.5 * (1.0 - min_lr_ratio) * (1.0 + math.cos(math.pi * progress))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean().item()
    model.train()
    return out


def sample(max_new_tokens):
    model.eval()
    start = torch.tensor([[stoi["\n"]]], device=device)
    text = "".join(itos[i] for i in model.generate(start, max_new_tokens)[0].tolist())
    model.train()
    return text.strip()


# -----------------------------------------------------------------------------
# training loop

t0 = time.time()
out_dir = tempfile.TemporaryDirectory()
ckpt_path = Path(out_dir.name) / "ckpt.pt"
best_val_loss = float("inf")
model.train()
for it in range(max_iters):
    if it % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {it}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter": it}
            torch.save(checkpoint, ckpt_path)
        print(f"    {sample(12)!r}")

    X, Y = get_batch("train")
    _, loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    scheduler.step()

    if it % 10 == 0:
        print(f"iter {it}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.2e}, {time.time() - t0:.1f}s")

losses = estimate_loss()
print(f"step {max_iters}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")

# sample from the best checkpoint
checkpoint = torch.load(ckpt_path)
model.load_state_dict(checkpoint["model"])
print(sample(60))
out_dir.cleanup()
