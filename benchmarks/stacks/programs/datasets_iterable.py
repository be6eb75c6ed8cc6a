"""A pipeline of the package datasets: map, filter, split, and shuffled shards, which a loader with workers reads."""

import argparse

import torch
import torch.nn.functional as F
from datasets import Dataset
from tiny import digest, make_tokenizer, sentences
from torch import nn
from torch.utils.data import DataLoader

EPOCHS = 3


class BagOfWords(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words = nn.Embedding(words, 32, padding_idx=0)
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))

    def forward(self, ids):
        lengths = (ids != 0).sum(dim=1, keepdim=True).clamp(min=1)
        return self.layers(self.words(ids).sum(dim=1) / lengths)


def label(text):
    return 2 if "river" in text or "boat" in text else int("house" in text or "clock" in text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()

    def encode(rows):
        encoded = tokenizer(rows["text"], padding="max_length", max_length=14, truncation=True)
        return {"input_ids": encoded["input_ids"], "label": [label(text) for text in rows["text"]]}

    data = Dataset.from_dict({"text": sentences(420, args.seed)}).filter(lambda row: "captain" not in row["text"])
    parts = data.train_test_split(test_size=0.2, seed=args.seed)
    parts = parts.map(encode, batched=True, remove_columns=["text"])
    shards = parts["train"].to_iterable_dataset(num_shards=4)
    train = shards.shuffle(seed=args.seed, buffer_size=64).with_format("torch")
    loader = DataLoader(train, batch_size=16, num_workers=2, persistent_workers=True)
    evaluation = DataLoader(parts["test"].with_format("torch"), batch_size=32)
    model = BagOfWords(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    for epoch in range(EPOCHS):
        train.set_epoch(epoch)
        model.train()
        total, batches = 0.0, 0
        for batch in loader:
            loss = F.cross_entropy(model(batch["input_ids"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, batches = total + loss.item(), batches + 1
        model.eval()
        with torch.no_grad():
            right = [(model(batch["input_ids"]).argmax(-1) == batch["label"]).float().mean() for batch in evaluation]
        print(f"epoch {epoch} batches {batches} loss {total / batches:.6f} accuracy {torch.stack(right).mean():.4f}")
    print("weights", digest(model))


if __name__ == "__main__":
    main()
