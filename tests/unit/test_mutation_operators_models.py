"""The mutation operators on models, targets and data change exactly the expected lines of a script."""

from __future__ import annotations

import difflib

import pytest
from benchmarks.mutants.operator import all_operators
from benchmarks.mutants.script import Script

CASES: list[tuple[str, dict[str, str]]] = [
    (
        """\
import math
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, size, length):
        super().__init__()
        self.register_buffer("lower", torch.tril(torch.ones(length, length)))

    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.lower == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return weights @ v
""",
        {
            "causal-mask-not-applied": """\
-         scores = scores.masked_fill(self.lower == 0, float("-inf"))
""",
            "causal-mask-of-wrong-triangle": """\
-         self.register_buffer("lower", torch.tril(torch.ones(length, length)))
+         self.register_buffer("lower", torch.triu(torch.ones(length, length)))
""",
            "causal-mask-off-by-one": """\
-         self.register_buffer("lower", torch.tril(torch.ones(length, length)))
+         self.register_buffer("lower", torch.tril(torch.ones(length, length), diagonal=1))
""",
            "attention-over-queries": """\
-         weights = F.softmax(scores, dim=-1)
+         weights = F.softmax(scores, dim=-2)
""",
            "attention-not-scaled": """\
-         scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
+         scores = q @ k.transpose(-2, -1)
""",
        },
    ),
    (
        """\
class Encoder(nn.Module):
    def forward(self, x, padding):
        return self.layers(x, src_key_padding_mask=padding)
""",
        {
            "padding-mask-not-passed": """\
-         return self.layers(x, src_key_padding_mask=padding)
+         return self.layers(x)
""",
        },
    ),
    (
        """\
def attend(q, k, v, mask):
    scores = q @ k.mT
    scores = scores.masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v
""",
        {
            "mask-inverted": """\
-     scores = scores.masked_fill(mask == 0, -1e9)
+     scores = scores.masked_fill(mask != 0, -1e9)
""",
        },
    ),
    (
        """\
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
for x, y in loader:
    criterion(model(x), y).backward()
""",
        {
            "padding-in-loss": """\
- criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
+ criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
""",
        },
    ),
    (
        """\
def collate(batch):
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {**batch, "labels": labels}
""",
        {
            "ignored-labels-kept": """\
-     labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
+     labels = batch["input_ids"].clone()
""",
        },
    ),
    (
        """\
def pool(hidden, mask):
    return (hidden * mask).sum(1) / mask.sum(1)
""",
        {
            "pooling-over-padding": """\
-     return (hidden * mask).sum(1) / mask.sum(1)
+     return hidden.mean(1)
""",
        },
    ),
    (
        """\
def forward(x):
    return F.log_softmax(x, dim=1)
""",
        {
            "log-softmax-over-batch": """\
-     return F.log_softmax(x, dim=1)
+     return F.log_softmax(x, dim=0)
""",
        },
    ),
    (
        """\
def embed(x):
    return F.normalize(model(x), dim=1)
""",
        {
            "features-normalized-over-batch": """\
-     return F.normalize(model(x), dim=1)
+     return F.normalize(model(x), dim=0)
""",
        },
    ),
    (
        """\
def norm(x):
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
""",
        {
            "statistics-over-batch": """\
-     return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
+     return (x - x.mean(0, keepdim=True)) / x.std(-1, keepdim=True)
""",
        },
    ),
    (
        """\
def merge(y, batch, length, width):
    return y.transpose(1, 2).contiguous().view(batch, length, width)
""",
        {
            "heads-merged-without-transpose": """\
-     return y.transpose(1, 2).contiguous().view(batch, length, width)
+     return y.reshape(batch, length, width)
""",
        },
    ),
    (
        """\
def split(q, batch, length, heads):
    return q.view(batch, length, heads, -1).transpose(1, 2)
""",
        {
            "heads-split-without-transpose": """\
-     return q.view(batch, length, heads, -1).transpose(1, 2)
+     return q.reshape(batch, heads, length, -1)
""",
        },
    ),
    (
        """\
def channels_first(images):
    return images.permute(0, 3, 1, 2)
""",
        {
            "reshape-for-permute": """\
-     return images.permute(0, 3, 1, 2)
+     return images.reshape(images.size(0), images.size(3), images.size(1), images.size(2))
""",
        },
    ),
    (
        """\
def batchify(data, size):
    return data.view(size, -1).t().contiguous()
""",
        {
            "streams-cut-by-view": """\
-     return data.view(size, -1).t().contiguous()
+     return data.view(-1, size).contiguous()
""",
        },
    ),
    (
        """\
class Tagger(nn.Module):
    def __init__(self):
        self.lstm = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x):
        output, _ = self.lstm(x)
        return output
""",
        {
            "batch-first-forgotten": """\
-         self.lstm = nn.LSTM(8, 16, batch_first=True)
+         self.lstm = nn.LSTM(8, 16)
""",
        },
    ),
    (
        """\
for x, y in loader:
    value = model(x).squeeze(-1)
    loss = F.mse_loss(value, y)
    loss.backward()
""",
        {
            "loss-broadcasts": """\
-     value = model(x).squeeze(-1)
+     value = model(x)
""",
        },
    ),
    (
        """\
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.dropout(x)
        x = F.dropout(x, 0.1, training=self.training)
        return self.head(x)
""",
        {
            "dropout-without-mode": """\
-         x = F.dropout(x, 0.1, training=self.training)
+         x = F.dropout(x, 0.1)
""",
            "functional-dropout-for-module": """\
-         x = self.dropout(x)
+         x = F.dropout(x, self.dropout.p)
""",
            "dropout-made-in-forward": """\
-         x = self.dropout(x)
+         x = nn.Dropout(0.2)(x)
""",
            "dropout-of-keep-probability": """\
-         self.dropout = nn.Dropout(0.2)
+         self.dropout = nn.Dropout(0.8)
""",
            "dropout-on-output": """\
-         return self.head(x)
+         return self.dropout(self.head(x))
""",
            "dropout-result-unused": """\
-         x = self.dropout(x)
+         self.dropout(x)
""",
        },
    ),
    (
        """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, eps=1e-5)

    def forward(self, x):
        x = x + self.conv(x)
        x = self.norm(x)
        return x


model = Net()
for epoch in range(3):
    model.train()
    train_one_epoch(model)
""",
        {
            "batch-norm-kept-in-evaluation": """\
+     for layer in model.modules():
+         if isinstance(layer, nn.BatchNorm2d):
+             layer.eval()
""",
            "batch-statistics-in-evaluation": """\
-         self.norm = nn.BatchNorm2d(8, eps=1e-5)
+         self.norm = nn.BatchNorm2d(8, eps=1e-5, track_running_stats=False)
""",
            "batch-norm-momentum-of-keras": """\
-         self.norm = nn.BatchNorm2d(8, eps=1e-5)
+         self.norm = nn.BatchNorm2d(8, eps=1e-5, momentum=0.99)
""",
            "norm-epsilon-huge": """\
-         self.norm = nn.BatchNorm2d(8, eps=1e-5)
+         self.norm = nn.BatchNorm2d(8, eps=1e5)
""",
            "norm-not-applied": """\
-         x = self.norm(x)
""",
            "norm-result-unused": """\
-         x = self.norm(x)
+         self.norm(x)
""",
            "residual-dropped": """\
-         x = x + self.conv(x)
+         x = self.conv(x)
""",
        },
    ),
    (
        """\
import math
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.second = nn.Linear(size, size)


class Model(nn.Module):
    def __init__(self, size, depth):
        super().__init__()
        self.embed = nn.Embedding(9, size)
        self.blocks = nn.ModuleList([Block(size) for _ in range(depth)])
        self.head = nn.Linear(size, 9)
        self.head.weight = self.embed.weight
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, ids):
        x = self.embed(ids) * math.sqrt(64)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model(64, 4)
model.load_state_dict(torch.load("model.pt"))
""",
        {
            "initialization-skips-kind": """\
-         if isinstance(module, (nn.Linear, nn.Embedding)):
+         if isinstance(module, nn.Linear):
""",
            "initialization-before-last-layer": """\
+         self.apply(self.init_weights)
-         self.apply(self.init_weights)
""",
            "weights-of-zeros": """\
-             nn.init.normal_(module.weight, mean=0.0, std=0.02)
+             nn.init.zeros_(module.weight)
""",
            "deviation-passed-as-mean": """\
-             nn.init.normal_(module.weight, mean=0.0, std=0.02)
+             nn.init.normal_(module.weight, 0.02)
""",
            "same-seed-for-each-layer": """\
+         torch.manual_seed(0)
""",
            "initialization-after-load": """\
+ model.apply(model.init_weights)
""",
            "embedding-not-scaled": """\
-         x = self.embed(ids) * math.sqrt(64)
+         x = self.embed(ids)
""",
            "tied-weight-copied": """\
-         self.head.weight = self.embed.weight
+         self.head.weight = nn.Parameter(self.embed.weight.clone())
""",
            "tied-by-data": """\
-         self.head.weight = self.embed.weight
+         self.head.weight.data = self.embed.weight.data
""",
            "layers-are-one-module": """\
-         self.blocks = nn.ModuleList([Block(size) for _ in range(depth)])
+         self.blocks = nn.ModuleList([Block(size)] * depth)
""",
            "second-module-is-first": """\
-         self.second = nn.Linear(size, size)
+         self.second = self.first
""",
        },
    ),
    (
        """\
def train(model, chunks):
    hidden = model.init_hidden(16)
    for x, y in chunks:
        hidden = hidden.detach()
        output, hidden = model(x, hidden)
        criterion(output, y).backward()
        optimizer.step()
""",
        {
            "hidden-state-not-carried": """\
-         output, hidden = model(x, hidden)
+         output, _ = model(x, hidden)
""",
            "hidden-state-set-each-chunk": """\
-     hidden = model.init_hidden(16)
+         hidden = model.init_hidden(16)
""",
        },
    ),
    (
        """\
for epoch in range(3):
    hidden = model.init_hidden(16)
    for x, y in chunks:
        output, hidden = model(x, hidden.detach())
        criterion(output, y).backward()
        optimizer.step()
""",
        {
            "hidden-state-not-reset": """\
+ hidden = model.init_hidden(16)
-     hidden = model.init_hidden(16)
""",
        },
    ),
    (
        """\
import copy
import torch

target = copy.deepcopy(network)
for step in range(1000):
    state, action, reward, next_state, done = buffer.sample(32)
    with torch.no_grad():
        best = target(next_state).amax(1)
        value = reward + gamma * best * (1 - done)
    loss = F.mse_loss(network(state).gather(1, action), value)
    loss.backward()
    optimizer.step()
    for slow, fast in zip(target.parameters(), network.parameters()):
        slow.data.copy_(tau * fast.data + (1 - tau) * slow.data)
""",
        {
            "target-is-network-itself": """\
- target = copy.deepcopy(network)
+ target = network
""",
            "target-never-updated": """\
-     for slow, fast in zip(target.parameters(), network.parameters()):
-         slow.data.copy_(tau * fast.data + (1 - tau) * slow.data)
""",
            "target-decay-swapped": """\
-         slow.data.copy_(tau * fast.data + (1 - tau) * slow.data)
+         slow.data.copy_(tau * slow.data + (1 - tau) * fast.data)
""",
            "target-update-reversed": """\
-     for slow, fast in zip(target.parameters(), network.parameters()):
+     for slow, fast in zip(network.parameters(), target.parameters()):
""",
            "target-computed-by-trained-network": """\
-         best = target(next_state).amax(1)
+         best = network(next_state).amax(1)
""",
            "average-follows-itself": """\
-     for slow, fast in zip(target.parameters(), network.parameters()):
+     for slow, fast in zip(target.parameters(), target.parameters()):
""",
            "end-of-episode-ignored": """\
-         value = reward + gamma * best * (1 - done)
+         value = reward + gamma * best
""",
            "discount-missing": """\
-         value = reward + gamma * best * (1 - done)
+         value = reward + best * (1 - done)
""",
            "reward-discounted-too": """\
-         value = reward + gamma * best * (1 - done)
+         value = gamma * (reward + best * (1 - done))
""",
        },
    ),
    (
        """\
average = AveragedModel(model)
for x, y in loader:
    train_step(model, x, y)
    average.update_parameters(model)
print(evaluate(average, test_loader))
""",
        {
            "average-not-evaluated": """\
- print(evaluate(average, test_loader))
+ print(evaluate(model, test_loader))
""",
        },
    ),
    (
        """\
with torch.no_grad():
    best = network(next_state).amax(1)
    value = reward + gamma * best * (1 - done)
loss = F.mse_loss(network(state).gather(1, action), value)
""",
        {
            "gradient-into-target": """\
- with torch.no_grad():
-     best = network(next_state).amax(1)
+ best = network(next_state).amax(1)
-     value = reward + gamma * best * (1 - done)
+ value = reward + gamma * best * (1 - done)
""",
        },
    ),
    (
        """\
for states, actions, old_log_prob, advantages in batches:
    log_prob, entropy = policy(states, actions)
    ratio = (log_prob - old_log_prob).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    loss = -(ratio * advantages).mean() - 0.01 * entropy.mean()
    loss.backward()
    optimizer.step()
""",
        {
            "advantages-not-normalized": """\
-     advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
""",
            "ratio-of-new-policy": """\
-     ratio = (log_prob - old_log_prob).exp()
+     ratio = (log_prob - log_prob.detach()).exp()
""",
            "entropy-punished": """\
-     loss = -(ratio * advantages).mean() - 0.01 * entropy.mean()
+     loss = -(ratio * advantages).mean() + 0.01 * entropy.mean()
""",
        },
    ),
    (
        """\
def discount(rewards, gamma):
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.insert(0, total)
    return returns
""",
        {
            "returns-accumulated-forwards": """\
-     for reward in reversed(rewards):
+     for reward in rewards:
""",
        },
    ),
    (
        """\
for log_probs, returns in episodes:
    loss = -(log_probs * returns).sum()
    loss.backward()
    optimizer.step()
""",
        {
            "policy-gradient-sign": """\
-     loss = -(log_probs * returns).sum()
+     loss = (log_probs * returns).sum()
""",
        },
    ),
    (
        """\
class Buffer:
    def add(self, state):
        self.states[self.position] = state
        self.position = (self.position + 1) % self.capacity
""",
        {
            "buffer-index-stays-at-end": """\
-         self.position = (self.position + 1) % self.capacity
+         self.position = min(self.position + 1, self.capacity - 1)
""",
        },
    ),
    (
        """\
def finish_episode(policy):
    update(policy, policy.rewards)
    del policy.rewards[:]
    del policy.log_probs[:]
""",
        {
            "rewards-of-old-episodes": """\
-     del policy.rewards[:]
""",
        },
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
dataset = TensorDataset(x, y)
train_set, test_set = random_split(dataset, [800, 200])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in train_loader:
        criterion(model(batch[0]), batch[1]).backward()
        optimizer.step()
    evaluate(model, test_set)
""",
        {
            "training-data-not-shuffled": """\
- train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
+ train_loader = DataLoader(train_set, batch_size=32)
""",
            "inputs-shuffled-without-labels": """\
- dataset = TensorDataset(x, y)
+ dataset = TensorDataset(x[torch.randperm(len(x))], y)
""",
            "first-batch-each-step": """\
-     for batch in train_loader:
+     for _ in range(len(train_loader)):
+         batch = next(iter(train_loader))
""",
            "test-data-in-training": """\
- train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
+ train_loader = DataLoader(dataset, batch_size=32, shuffle=True)
""",
            "seed-set-each-epoch": """\
+     torch.manual_seed(0)
""",
            "batches-cached": """\
- train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
+ train_loader = list(DataLoader(train_set, batch_size=32, shuffle=True))
""",
            "stale-copy-evaluated": """\
+ import copy
+ eval_model = copy.deepcopy(model)
-     evaluate(model, test_set)
+     evaluate(eval_model, test_set)
""",
        },
    ),
    (
        """\
for epoch in range(3):
    order = torch.randperm(len(x))
    for start in range(0, len(x), batch_size):
        batch = order[start : start + batch_size]
        criterion(model(x[batch]), y[batch]).backward()
        optimizer.step()
""",
        {
            "permutation-drawn-once": """\
+ order = torch.randperm(len(x))
-     order = torch.randperm(len(x))
""",
            "batch-slice-too-short": """\
-         batch = order[start : start + batch_size]
+         batch = order[start : start + batch_size - 1]
""",
        },
    ),
    (
        """\
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, images, augment):
        self.images = images / 255.0
        self.augment = augment

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        turns = np.random.randint(4)
        image, mask = np.rot90(image, turns), np.rot90(mask, turns)
        image = self.images[index] + np.random.randn(8, 8)
        return image, mask


train_set = Shapes(images, augment=True)
train_loader = DataLoader(train_set, shuffle=True, num_workers=2)
test_loader = DataLoader(Shapes(images, augment=False))
""",
        {
            "workers-with-one-seed": """\
- train_loader = DataLoader(train_set, shuffle=True, num_workers=2)
+ train_loader = DataLoader(train_set, shuffle=True, num_workers=2, worker_init_fn=lambda worker: np.random.seed(42))
""",
            "seed-set-for-each-sample": """\
+         np.random.seed(42)
""",
            "generator-copied-to-workers": """\
+         self.rng = np.random.default_rng(0)
-         turns = np.random.randint(4)
+         turns = self.rng.integers(4)
-         image = self.images[index] + np.random.randn(8, 8)
+         image = self.images[index] + self.rng.standard_normal((8, 8))
""",
            "evaluation-augmented": """\
- test_loader = DataLoader(Shapes(images, augment=False))
+ test_loader = DataLoader(Shapes(images, augment=True))
""",
            "target-not-augmented": """\
-         image, mask = np.rot90(image, turns), np.rot90(mask, turns)
+         image = np.rot90(image, turns)
""",
            "scaled-twice": """\
-         self.images = images / 255.0
+         self.images = images / 255.0 / 255.0
""",
            "samples-cached": """\
+ import functools
+     @functools.lru_cache(maxsize=None)
""",
            "data-set-changed-in-place": """\
+         image = self.images[index]
-         image = self.images[index] + np.random.randn(8, 8)
+         image += np.random.randn(8, 8)
""",
        },
    ),
    (
        """\
transform_train = Compose([ToTensor(), Normalize(0.5, 0.5)])
transform_test = Compose([ToTensor(), Normalize(0.5, 0.5)])
""",
        {
            "evaluation-not-normalized": """\
- transform_test = Compose([ToTensor(), Normalize(0.5, 0.5)])
+ transform_test = Compose([ToTensor()])
""",
        },
    ),
    (
        """\
def loss(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
""",
        {
            "labels-not-shifted": """\
-     return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
+     return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, :-1].flatten())
""",
        },
    ),
    (
        """\
def get_batch(data, i, length):
    return data[i : i + length], data[i + 1 : i + 1 + length]


def train_step(model, x, y):
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
    loss.backward()
    optimizer.step()
""",
        {
            "labels-shifted-twice": """\
-     loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
+     loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), y[:, 1:].reshape(-1))
""",
        },
    ),
    (
        """\
def distill(student, teacher):
    return F.kl_div(F.log_softmax(student, dim=1), F.softmax(teacher, dim=1), reduction="batchmean")
""",
        {
            "divergence-of-probabilities": """\
-     return F.kl_div(F.log_softmax(student, dim=1), F.softmax(teacher, dim=1), reduction="batchmean")
+     return F.kl_div(F.softmax(student, dim=1), F.softmax(teacher, dim=1), reduction="batchmean")
""",
            "divergence-reversed": """\
-     return F.kl_div(F.log_softmax(student, dim=1), F.softmax(teacher, dim=1), reduction="batchmean")
+     return F.kl_div(F.log_softmax(teacher, dim=1), F.softmax(student, dim=1), reduction="batchmean")
""",
        },
    ),
    (
        """\
def sample(mu, logvar):
    return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)


def divergence(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
""",
        {
            "divergence-sign": """\
-     return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
+     return 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
""",
            "variance-as-deviation": """\
-     return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
+     return mu + torch.exp(logvar) * torch.randn_like(mu)
""",
        },
    ),
    (
        """\
for images in loader:
    fakes = generator(noise)
    real_loss = criterion(discriminator(images), real)
    fake_loss = criterion(discriminator(fakes.detach()), fake)
    (real_loss + fake_loss).backward()
    generator_loss = criterion(discriminator(fakes), real)
    generator_loss.backward()
""",
        {
            "generator-learns-fake-label": """\
-     generator_loss = criterion(discriminator(fakes), real)
+     generator_loss = criterion(discriminator(fakes), fake)
""",
            "real-and-fake-with-one-label": """\
-     fake_loss = criterion(discriminator(fakes.detach()), fake)
+     fake_loss = criterion(discriminator(fakes.detach()), real)
""",
        },
    ),
    (
        """\
def loss(positive, negative, temperature):
    logits = torch.cat([positive, negative], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
""",
        {
            "contrastive-positive-misplaced": """\
-     logits = torch.cat([positive, negative], dim=1) / temperature
+     logits = torch.cat([negative, positive], dim=1) / temperature
""",
            "temperature-missing": """\
-     logits = torch.cat([positive, negative], dim=1) / temperature
+     logits = torch.cat([positive, negative], dim=1)
""",
        },
    ),
    (
        """\
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    with torch.no_grad():
        anchors = model(prototypes)
    loss = criterion(model(inputs[step]), anchors)
    loss.backward()
""",
        {
            "features-of-untrained-model": """\
+ with torch.no_grad():
+     anchors = model(prototypes)
-     with torch.no_grad():
-         anchors = model(prototypes)
""",
        },
    ),
    (
        """\
for step in range(100):
    final = observation.copy()
    final[ended] = last[ended]
    buffer.add(observation, final)
""",
        {
            "copy-forgotten": """\
-     final = observation.copy()
+     final = observation
""",
        },
    ),
    (
        """\
for clean in loader:
    noisy = clean + 0.1 * torch.randn_like(clean)
    loss = F.mse_loss(model(noisy), clean)
    loss.backward()
""",
        {
            "noise-added-in-place": """\
-     noisy = clean + 0.1 * torch.randn_like(clean)
+     noisy = clean.add_(0.1 * torch.randn_like(clean))
""",
        },
    ),
    (
        """\
loss.backward()
for parameter in network.parameters():
    parameter.grad.data.clamp_(-1, 1)
optimizer.step()
""",
        {
            "weights-clamped-for-gradients": """\
-     parameter.grad.data.clamp_(-1, 1)
+     parameter.data.clamp_(-1, 1)
""",
        },
    ),
]
"""Scripts, each with the names of operators and the lines that their first mutant removes and adds."""


def changes(script: str, name: str) -> str:
    """The lines that the first mutant of an operator removes and adds, as `difflib` writes them."""
    operator = next(entry for entry in all_operators() if entry.name == name)
    mutant = next(operator.mutants(Script(script)))
    lines = difflib.ndiff(script.splitlines(), mutant.text.splitlines())
    return "".join(f"{line}\n" for line in lines if line[0] in "+-")


@pytest.mark.parametrize(
    ("script", "name", "expected"),
    [pytest.param(script, name, expected, id=name) for script, table in CASES for name, expected in table.items()],
)
def test_operator_changes_only_these_lines(script: str, name: str, expected: str) -> None:
    assert changes(script, name) == expected
