"""Tell six synthetic syllables apart from their raw sound with a small speech encoder."""

import argparse
import math

import torch
from pretrained_base import SpeechConfig
from speech_encoder import SpeechClassifier

RATE = 4000
VOWELS = {
    "ma": (700, 1200),
    "mi": (300, 1900),
    "mu": (320, 800),
    "sa": (700, 1200),
    "si": (300, 1900),
    "su": (320, 800),
}


def syllable(name, generator, length=1024):
    """A hum or a hiss, then a vowel with two formants; pitch, onset and loudness vary."""
    time = torch.arange(length) / RATE
    pitch, start, loudness = torch.rand(3, generator=generator).tolist()
    noise = torch.randn(length, generator=generator)
    onset = int(length * (0.2 + 0.2 * start))
    hum = torch.sin(2 * math.pi * (90 + 40 * pitch) * time)
    head = 0.6 * noise if name[0] == "s" else 0.6 * hum
    formants = [f * (0.95 + 0.1 * pitch) for f in VOWELS[name]]
    vowel = sum(torch.sin(2 * math.pi * f * time) for f in formants) * (0.7 + 0.3 * hum)
    sound = torch.where(torch.arange(length) < onset, head, vowel)
    return (0.5 + loudness) * sound + 0.1 * noise


def make_clips(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(VOWELS), (count,), generator=generator)
    names = list(VOWELS)
    return torch.stack([syllable(names[i], generator) for i in labels.tolist()]), labels


def evaluate(model, sounds, labels):
    model.eval()
    with torch.inference_mode():
        loss, logits = model(sounds, labels)
    return loss.item(), (logits.argmax(-1) == labels).float().mean().item()


def train(model, sounds, labels, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    order = torch.Generator().manual_seed(args.seed)
    held_out = make_clips(120, args.seed + 1)
    for epoch in range(args.epochs):
        model.train()
        for chosen in torch.randperm(len(labels), generator=order).split(args.batch_size):
            loss, _ = model(sounds[chosen], labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        held_out_loss, accuracy = evaluate(model, *held_out)
        print(f"epoch {epoch + 1}: held-out loss {held_out_loss:.3f}, accuracy {accuracy:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=320)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = SpeechClassifier(SpeechConfig(num_layers=args.layers, num_labels=len(VOWELS)))
    print(f"{model.num_parameters()} parameters")
    train(model, *make_clips(args.clips, args.seed), args)


if __name__ == "__main__":
    main()
