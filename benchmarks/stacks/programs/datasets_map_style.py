"""A map-style pipeline of the package datasets: files, map with its cache, a shuffle for each epoch, and workers."""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from datasets import load_dataset
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


def write(path, count, seed):
    rows = [json.dumps({"text": text, "label": label(text)}) for text in sentences(count, seed)]
    Path(path).write_text("\n".join(rows) + "\n")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    tokenizer = make_tokenizer()

    def encode(rows):
        return tokenizer(rows["text"], padding="max_length", max_length=14, truncation=True)

    with tempfile.TemporaryDirectory() as folder:
        files = {
            "train": write(f"{folder}/train.jsonl", 320, args.seed),
            "validation": write(f"{folder}/validation.jsonl", 64, args.seed + 1000),
        }
        parts = load_dataset("json", data_files=files, cache_dir=f"{folder}/cache")
        parts = parts.map(encode, batched=True, remove_columns=["text"]).with_format("torch")
        evaluation = DataLoader(parts["validation"], batch_size=32)
        model = BagOfWords(len(tokenizer))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for epoch in range(EPOCHS):
            model.train()
            losses = []
            for batch in DataLoader(parts["train"].shuffle(), batch_size=16, num_workers=1):
                loss = F.cross_entropy(model(batch["input_ids"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                right = [(model(batch["input_ids"]).argmax(-1) == batch["label"]).float() for batch in evaluation]
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.6f} accuracy {torch.cat(right).mean():.4f}")
    print("weights", digest(model))


if __name__ == "__main__":
    main()
