"""Good run 2: tell three clouds of points apart, with a data loader and an evaluation after each epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, 3)

    def forward(self, points):
        return self.head(self.body(points))


def main():
    torch.manual_seed(1)
    labels = torch.arange(600) % 3
    points = torch.randn(600, 2) + 3.0 * F.one_hot(labels, 3)[:, :2]
    loader = DataLoader(TensorDataset(points[:480], labels[:480]), batch_size=48, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        model.train()
        for batch, target in loader:
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            correct = (model(points[480:]).argmax(1) == labels[480:]).float().mean()
        print(f"classifier: epoch {epoch}  loss {loss.item():.4f}  accuracy {correct:.1%}")


if __name__ == "__main__":
    main()
