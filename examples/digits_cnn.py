"""Train a small CNN on the scikit-learn digits (8x8 images, 10 classes)."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(64)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout(x)
        return self.fc2(x)


def get_loaders(batch_size, seed):
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.images / 16.0, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )

    def to_dataset(x, y):
        return TensorDataset(torch.tensor(x, dtype=torch.float32).unsqueeze(1), torch.tensor(y))

    train_loader = DataLoader(to_dataset(x_train, y_train), batch_size=batch_size, shuffle=True)
    test_loader = DataLoader(to_dataset(x_test, y_test), batch_size=256)
    return train_loader, test_loader


def train(model, device, loader, optimizer, epoch, log_interval):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % log_interval == 0:
            print(f"epoch {epoch} [{batch_idx:3d}/{len(loader)}]  loss {loss.item():.4f}")


def evaluate(model, device, loader):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.cross_entropy(output, target, reduction="sum").item()
            correct += (output.argmax(dim=1) == target).sum().item()
    n = len(loader.dataset)
    return test_loss / n, correct / n


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--gamma", type=float, default=0.7, help="learning rate decay per epoch")
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader, test_loader = get_loaders(args.batch_size, args.seed)
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    best = 0.0
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "digits_cnn.pt"
        for epoch in range(1, args.epochs + 1):
            train(model, device, train_loader, optimizer, epoch, args.log_interval)
            test_loss, accuracy = evaluate(model, device, test_loader)
            scheduler.step()
            print(f"epoch {epoch} test: loss {test_loss:.4f}  accuracy {100 * accuracy:.1f}%")
            if accuracy > best:
                best = accuracy
                torch.save(model.state_dict(), checkpoint)

        model.load_state_dict(torch.load(checkpoint, map_location=device))
    print(f"best: accuracy {100 * evaluate(model, device, test_loader)[1]:.1f}%")


if __name__ == "__main__":
    main()
