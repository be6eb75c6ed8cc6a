"""Read pressure dials: a small ConvNet regresses the direction of the needle from augmented photographs."""

import argparse
import math

import torch
from dials import DialPhotos
from reproducible import seed_everything, training_loader
from torch import nn
from torch.utils.data import DataLoader


class DialReader(nn.Sequential):
    def __init__(self, width=12):
        super().__init__(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 25, 2),
        )


class Trainer:
    def __init__(self, model, train_loader, test_loader, epochs, lr):
        self.model = model
        self.train_loader, self.test_loader = train_loader, test_loader
        self.epochs = epochs
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=epochs - 1, gamma=0.3)

    def run(self):
        for epoch in range(self.epochs):
            loss = self.train_epoch()
            self.schedule.step()
            print(f"[{epoch + 1}/{self.epochs}] loss {loss:.4f}  test error {self.test():.1f} degrees")

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for images, directions in self.train_loader:
            loss = nn.functional.mse_loss(self.model(images), directions)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train_loader)

    @torch.no_grad()
    def test(self):
        """The mean angle, in degrees, between the predicted and the true direction."""
        self.model.eval()
        angles = []
        for images, directions in self.test_loader:
            cosine = nn.functional.cosine_similarity(self.model(images), directions)
            angles.append(torch.acos(cosine.clamp(-1, 1)))
        return math.degrees(torch.cat(angles).mean().item())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--photos", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=30)
    args = parser.parse_args()
    seed_everything(args.seed)
    train = DialPhotos(args.photos, args.seed, augmented=True)
    test = DialPhotos(128, args.seed + 500, augmented=False)
    trainer = Trainer(
        DialReader(),
        training_loader(train, args.batch_size, args.seed),
        DataLoader(test, batch_size=64),
        args.epochs,
        args.lr,
    )
    trainer.run()


if __name__ == "__main__":
    main()
