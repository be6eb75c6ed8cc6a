"""A multimodal model: several images and a question about them go in together, a digit comes out as the answer."""

import argparse
import random
import re

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

PLACES = ["first", "second", "third"]
PHRASINGS = ["which digit is in the {} picture?", "what does the {} image show?", "name the {} digit, please"]


class DigitProcessor:
    """Turns samples, each with a list of images and a text, into one batch of tensors.

    Samples may have different numbers of images: `pixel_values` is (batch, n_images, 1, height, width), padded with
    zeros, and `image_mask` tells which are real.
    """

    def __init__(self, texts, mean=0.3, std=0.38):
        words = sorted({word for text in texts for word in self.split(text)})
        self.vocab = {"[PAD]": 0, "[UNK]": 1} | {word: i for i, word in enumerate(words, start=2)}
        self.mean, self.std = mean, std

    @staticmethod
    def split(text):
        return re.findall(r"[a-z]+|[?.,]", text.lower())

    def __call__(self, images, text):
        if len(images) != len(text):
            raise ValueError(f"{len(images)} lists of images and {len(text)} texts")
        most = max(len(group) for group in images)
        height, width = images[0][0].shape
        pixel_values = torch.zeros(len(images), most, 1, height, width)
        image_mask = torch.zeros(len(images), most, dtype=torch.bool)
        for i, group in enumerate(images):
            pixels = torch.from_numpy(np.stack(group)).float()
            pixel_values[i, : len(group), 0] = (pixels / 16.0 - self.mean) / self.std
            image_mask[i, : len(group)] = True

        token_ids = [[self.vocab.get(word, 1) for word in self.split(t)] for t in text]
        input_ids = torch.zeros(len(text), max(map(len, token_ids)), dtype=torch.long)
        for i, ids in enumerate(token_ids):
            input_ids[i, : len(ids)] = torch.tensor(ids)
        return {
            "pixel_values": pixel_values,
            "image_mask": image_mask,
            "input_ids": input_ids,
            "attention_mask": input_ids != 0,
        }


class Questions(Dataset):
    def __init__(self, images, targets, count, seed):
        rng = random.Random(seed)
        self.samples = []
        for _ in range(count):
            picks = [rng.randrange(len(images)) for _ in range(rng.choice([2, 3]))]
            asked = rng.randrange(len(picks))
            self.samples.append(
                {
                    "images": [images[i] for i in picks],
                    "text": rng.choice(PHRASINGS).format(PLACES[asked]),
                    "label": int(targets[picks[asked]]),
                }
            )

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


class Collator:
    def __init__(self, processor):
        self.processor = processor

    def __call__(self, samples):
        batch = self.processor(images=[s["images"] for s in samples], text=[s["text"] for s in samples])
        batch["labels"] = torch.tensor([s["label"] for s in samples])
        return batch


class ImageEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.GroupNorm(4, 24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.GroupNorm(4, 48),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48 * 4 * 4, dim),
        )

    def forward(self, pixel_values):
        batch, n_images = pixel_values.shape[:2]
        return self.net(pixel_values.flatten(0, 1)).unflatten(0, (batch, n_images))


class TextEncoder(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.mix = nn.Linear(dim, dim)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        return torch.tanh(self.mix(mean))


class QuestionAnswerer(nn.Module):
    """The question attends to the pictures; question and what it found are joined for the answer."""

    def __init__(self, vocab_size, dim=64, max_images=3, num_answers=10):
        super().__init__()
        self.image_encoder = ImageEncoder(dim)
        self.text_encoder = TextEncoder(vocab_size, dim)
        self.place = nn.Parameter(torch.randn(max_images, dim))
        self.fusion = nn.MultiheadAttention(dim, num_heads=2, dropout=0.05, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Sequential(
            nn.Linear(2 * dim, dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(dim, num_answers)
        )

    def forward(self, pixel_values, image_mask, input_ids, attention_mask, labels=None):
        pictures = self.image_encoder(pixel_values)
        keys = pictures + self.place[: pictures.size(1)]
        question = self.text_encoder(input_ids, attention_mask)
        found, weights = self.fusion(question.unsqueeze(1), keys, pictures, key_padding_mask=~image_mask)
        logits = self.classifier(torch.cat([self.norm(found.squeeze(1)), question], dim=-1))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits, "weights": weights.squeeze(1)}


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = count = 0
    for batch in loader:
        labels = batch.pop("labels")
        hits += (model(**batch)["logits"].argmax(-1) == labels).sum().item()
        count += len(labels)
    return hits / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    digits = load_digits()
    processor = DigitProcessor([phrasing.format(place) for phrasing in PHRASINGS for place in PLACES])
    train_set = Questions(digits.images[:1400], digits.target[:1400], 1152, args.seed)
    test_set = Questions(digits.images[1400:], digits.target[1400:], 256, args.seed + 1)
    collator = Collator(processor)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=collator)
    test_loader = DataLoader(test_set, 128, collate_fn=collator)

    model = QuestionAnswerer(len(processor.vocab))
    optimizer = torch.optim.AdamW(
        [
            {"params": model.image_encoder.parameters(), "lr": 3e-3},
            {"params": [p for n, p in model.named_parameters() if not n.startswith("image_encoder.")], "lr": 6e-3},
        ],
        weight_decay=0.01,
    )

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for batch in train_loader:
            output = model(**batch)
            optimizer.zero_grad()
            output["loss"].backward()
            optimizer.step()
            running += output["loss"].item()
        print(f"epoch {epoch}: loss {running / len(train_loader):.4f}, accuracy {evaluate(model, test_loader):.3f}")

    sample = test_set[0]
    with torch.no_grad():
        answer = model(**processor(images=[sample["images"]], text=[sample["text"]]))
    print(f"{sample['text']} -> {answer['logits'].argmax().item()} (it is {sample['label']})")
    print("attention to the pictures: " + ", ".join(f"{w:.2f}" for w in answer["weights"][0].tolist()))


if __name__ == "__main__":
    main()
