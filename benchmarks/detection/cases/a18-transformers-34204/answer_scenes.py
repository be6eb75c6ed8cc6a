"""Train a small vision-language classifier that answers questions about scenes."""

import argparse
from functools import partial

import torch
from processing import SceneProcessor
from scene_model import AnswerModel
from scenes import ANSWERS, WORDS, SceneQuestions
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def collate(items, processor):
    images, questions, answers = map(list, zip(*items, strict=True))
    return processor(images=images, text=questions, labels=answers)


def run_epoch(model, loader, optimizer=None):
    """Mean loss and accuracy over the batches of a loader; trains where there is an optimizer."""
    model.train(optimizer is not None)
    losses, correct = [], []
    for batch in loader:
        labels = batch.pop("labels")
        with torch.set_grad_enabled(optimizer is not None):
            logits = model(**batch)
            loss = cross_entropy(logits, labels)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        correct.append((logits.argmax(-1) == labels).float().mean().item())
    return sum(losses) / len(losses), sum(correct) / len(correct)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--scenes", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    processor = SceneProcessor(WORDS)
    load = partial(DataLoader, batch_size=args.batch_size, collate_fn=partial(collate, processor=processor))
    train_loader = load(SceneQuestions(args.scenes, args.seed), shuffle=True)
    test_loader = load(SceneQuestions(200, args.seed + 9))
    model = AnswerModel(vocabulary=len(WORDS) + 1, answers=len(ANSWERS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        loss, accuracy = run_epoch(model, train_loader, optimizer)
        test_loss, test_accuracy = run_epoch(model, test_loader)
        print(f"epoch {epoch}: train {loss:.3f} ({accuracy:.2f}), test {test_loss:.3f} ({test_accuracy:.2f})")


if __name__ == "__main__":
    main()
