"""Grade fruit by its picture: a regression on top of a backbone whose first stages stay as they are."""

import argparse

import torch
from fruits import FruitPictures
from stagenet import StageNet, load_cosine_filters
from torch import nn
from torch.utils.data import DataLoader


class FruitGrader(nn.Module):
    def __init__(self, frozen_stages):
        super().__init__()
        self.backbone = StageNet(frozen_stages=frozen_stages)
        self.regressor = nn.Sequential(nn.Linear(self.backbone.out_features, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, pictures):
        return self.regressor(self.backbone(pictures)).squeeze(1)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--fruits", type=int, default=320)
parser.add_argument("--frozen-stages", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--seed", type=int, default=0)
opt = parser.parse_args()

torch.manual_seed(opt.seed)
train_loader = DataLoader(FruitPictures(opt.fruits, opt.seed), batch_size=32, shuffle=True)
test_loader = DataLoader(FruitPictures(120, opt.seed + 77), batch_size=60)

model = FruitGrader(opt.frozen_stages)
load_cosine_filters(model.backbone)
optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)
criterion = nn.MSELoss()

for epoch in range(opt.epochs):
    squared = 0.0
    for pictures, grades in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(pictures), grades)
        loss.backward()
        optimizer.step()
        squared += loss.item() * len(grades)
    print(f"epoch {epoch}: training error {(squared / len(train_loader.dataset)) ** 0.5:.4f}")

model.eval()
with torch.no_grad():
    off = torch.cat([(model(pictures) - grades).abs() for pictures, grades in test_loader])
print(f"test: mean error {off.mean().item():.4f}, worst {off.max().item():.4f}")
