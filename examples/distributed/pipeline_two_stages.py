"""A convolutional network cut in two: micro-batches go through both stages with blocking send and recv, as in GPipe."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

FIRST, LAST = 0, 1
BOUNDARY = (24, 4, 4)  # shape of an activation between the stages


class Stem(nn.Module):
    """The first stage: images to feature maps."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.gn1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 24, kernel_size=3, stride=2, padding=1)
        self.gn2 = nn.GroupNorm(4, 24)

    def forward(self, x):
        x = torch.relu(self.gn1(self.conv1(x)))
        return torch.relu(self.gn2(self.conv2(x)))


class Top(nn.Module):
    """The second stage: feature maps to scores."""

    def __init__(self):
        super().__init__()
        self.conv3 = nn.Conv2d(24, 32, kernel_size=3, padding=1)
        self.gn3 = nn.GroupNorm(4, 32)
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        x = torch.relu(self.gn3(self.conv3(x)))
        x = nn.functional.max_pool2d(x, 2)
        return self.fc(x.flatten(1))


def get_data(batch_size, seed):
    """Both stages walk through the same batches: the first takes the images, the last the labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1440], order[1440:]
    train_loader = DataLoader(
        TensorDataset(images[train], labels[train]),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )
    test_loader = DataLoader(TensorDataset(images[test], labels[test]), batch_size=len(test))
    return train_loader, test_loader


def train_first_stage(model, optimizer, images, n_micro):
    optimizer.zero_grad()
    outputs = []
    for micro in images.chunk(n_micro):
        output = model(micro)
        dist.send(output.detach(), dst=LAST)
        outputs.append(output)
    for output in outputs:
        grad = torch.empty_like(output)
        dist.recv(grad, src=LAST)
        output.backward(grad)
    optimizer.step()


def train_last_stage(model, optimizer, criterion, labels, n_micro):
    optimizer.zero_grad()
    inputs, losses = [], []
    for micro in labels.chunk(n_micro):
        received = torch.empty(len(micro), *BOUNDARY)
        dist.recv(received, src=FIRST)
        received.requires_grad_()
        inputs.append(received)
        losses.append(criterion(model(received), micro) / n_micro)
    for received, loss in zip(inputs, losses, strict=True):
        loss.backward()
        dist.send(received.grad, dst=FIRST)
    optimizer.step()
    return sum(loss.item() for loss in losses)


@torch.no_grad()
def test(stage, model, loader):
    """The last stage returns the accuracy, the first returns nothing."""
    model.eval()
    correct = 0
    for images, labels in loader:
        if stage == FIRST:
            dist.send(model(images), dst=LAST)
        else:
            received = torch.empty(len(labels), *BOUNDARY)
            dist.recv(received, src=FIRST)
            correct += (model(received).argmax(dim=1) == labels).sum().item()
    return None if stage == FIRST else correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.08)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    stage = dist.get_rank()
    if dist.get_world_size() != 2:
        parser.error("this pipeline has two stages: start it with --nproc-per-node 2")
    torch.manual_seed(args.seed + stage)
    model = Stem() if stage == FIRST else Top()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    train_loader, test_loader = get_data(args.batch_size, args.seed)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(train_loader))
    criterion = nn.CrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        model.train()
        for step, (images, labels) in enumerate(train_loader):
            if stage == FIRST:
                train_first_stage(model, optimizer, images, args.micro_batches)
            else:
                loss = train_last_stage(model, optimizer, criterion, labels, args.micro_batches)
                if step % 10 == 0:
                    print(f"epoch {epoch} step {step:2d}: loss {loss:.4f}")
            scheduler.step()
        accuracy = test(stage, model, test_loader)
        if stage == LAST:
            print(f"epoch {epoch}: test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
