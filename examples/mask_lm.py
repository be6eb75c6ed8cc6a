"""A small BERT written out: masked language modelling with tied embeddings and an average of the weights."""

import argparse
import math
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

PAD, CLS, SEP, MASK = range(4)
SPECIAL = 4
WEEK = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MEALS = {
    "breakfast": ["bread", "eggs", "coffee"],
    "lunch": ["soup", "salad", "water"],
    "dinner": ["rice", "fish", "tea"],
}
PEOPLE = ["my aunt", "the cook", "our neighbour"]
WORDS = sorted(
    {*WEEK, *MEALS, *(dish for dishes in MEALS.values() for dish in dishes), *" ".join(PEOPLE).split()}
    | {"after", "on", "has", "and", "for", "then"}
)
TO_ID = {word: SPECIAL + i for i, word in enumerate(WORDS)}
VOCAB_SIZE = SPECIAL + len(WORDS)


def diary_line(rng):
    day = rng.randrange(7)
    words = ["on", WEEK[day]]
    for i in range(rng.choice([1, 2])):
        meal = rng.choice(list(MEALS))
        first, second = rng.sample(MEALS[meal], 2)
        words += ["then"] * i + [*rng.choice(PEOPLE).split(), "has", first, "and", second, "for", meal]
    return [CLS, *(TO_ID[w] for w in [*words, "after", WEEK[day - 1]]), SEP]


class MaskingCollator:
    """Pads a batch and hides 15% of its words: of these 80% as a mask, 10% as another word, 10% not at all."""

    def __init__(self, probability=0.15, generator=None):
        self.probability, self.generator = probability, generator

    def rand(self, like):
        return torch.rand(like.shape, generator=self.generator)

    def __call__(self, lines):
        length = max(map(len, lines))
        inputs = torch.tensor([line + [PAD] * (length - len(line)) for line in lines])
        words = inputs >= SPECIAL
        hidden = words & (self.rand(inputs) < self.probability)
        labels = inputs.masked_fill(~hidden, -100)
        dice = self.rand(inputs)
        others = torch.randint(SPECIAL, VOCAB_SIZE, inputs.shape, generator=self.generator)
        attention_mask = inputs != PAD
        inputs = torch.where(hidden & (dice < 0.8), MASK, inputs)
        inputs = torch.where(hidden & (dice >= 0.9), others, inputs)
        return inputs, attention_mask, labels


class BertLayer(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attention_mask):
        b, t, h = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        dropout_p = self.dropout.p if self.training else 0.0
        mask = attention_mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
        attended = self.attention_output(attended.transpose(1, 2).reshape(b, t, h))
        x = self.attention_norm(x + self.dropout(attended))
        return self.output_norm(x + self.dropout(self.output(F.gelu(self.intermediate(x)))))


class BertForMaskedLM(nn.Module):
    def __init__(self, vocab_size, hidden=96, layers=2, heads=4, max_length=32, dropout=0.05):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(max_length, hidden)
        self.embedding_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(BertLayer(hidden, heads, dropout) for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=1e-12))
        self.decoder = nn.Linear(hidden, vocab_size)
        self.apply(self._init_weights)
        self.decoder.weight = self.word_embeddings.weight

    @staticmethod
    def _init_weights(module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            module.weight.data.fill_(1.0)
            module.bias.data.zero_()

    def forward(self, inputs, attention_mask):
        positions = torch.arange(inputs.size(1), device=inputs.device)
        x = self.word_embeddings(inputs) + self.position_embeddings(positions)
        x = self.dropout(self.embedding_norm(x))
        for layer in self.encoder:
            x = layer(x, attention_mask)
        return self.decoder(self.transform(x))


def mlm_loss(logits, labels):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    loss = right = hidden = 0
    for inputs, attention_mask, labels in batches:
        logits = model(inputs, attention_mask)
        count = (labels != -100).sum().item()
        loss += mlm_loss(logits, labels).item() * count
        right += (logits.argmax(-1) == labels).sum().item()
        hidden += count
    return math.exp(loss / hidden), right / hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ema-decay", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)

    lines = [diary_line(rng) for _ in range(1120)]
    train_loader = DataLoader(lines[:960], 64, shuffle=True, collate_fn=MaskingCollator())
    # what is hidden in the validation lines is drawn once
    val_batches = list(
        DataLoader(lines[960:], 80, collate_fn=MaskingCollator(generator=torch.Generator().manual_seed(0)))
    )

    model = BertForMaskedLM(VOCAB_SIZE)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.ema_decay))
    no_decay = ("bias", "norm.weight", "transform.2.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.98), eps=1e-6)
    total, warmup = args.epochs * len(train_loader), 8
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, max(0.0, (total - step) / (total - warmup)))
    )

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for inputs, attention_mask, labels in train_loader:
            loss = mlm_loss(model(inputs, attention_mask), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            scheduler.step()
            ema.update_parameters(model)
            running += loss.item()
        perplexity, accuracy = evaluate(model, val_batches)
        ema_perplexity, ema_accuracy = evaluate(ema, val_batches)
        print(
            f"epoch {epoch}: train loss {running / len(train_loader):.3f}  perplexity {perplexity:.2f}  "
            f"accuracy {accuracy:.3f}  (average of weights: {ema_perplexity:.2f}, {ema_accuracy:.3f})"
        )


if __name__ == "__main__":
    main()
