"""Recognise solids by points on their surface, whatever their order and pose, with a PointNet."""

import argparse
from itertools import pairwise

import torch
import torch.nn as nn
from launcher import Launcher
from point_clouds import SOLIDS, make_clouds
from torch.utils.data import DataLoader


def shared_mlp(*widths):
    """The same small network for each point."""
    layers = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), nn.LayerNorm(outs), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.register_buffer("shells", torch.linspace(0.4, 1.4, 8))
        self.local = shared_mlp(3 + len(self.shells), width, width)
        self.joint = shared_mlp(2 * width, width)
        self.classify = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * width, len(SOLIDS)))

    def forward(self, clouds):
        nearness = torch.exp(-(((clouds.norm(dim=-1, keepdim=True) - self.shells) / 0.15) ** 2))
        local = self.local(torch.cat([clouds, nearness], dim=-1))
        context = local.amax(dim=1, keepdim=True).expand_as(local)
        joint = self.joint(torch.cat([local, context], dim=-1))
        return self.classify(torch.cat([joint.mean(dim=1), joint.amax(dim=1)], dim=-1))


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        hits = [(model(clouds).argmax(1) == kinds).float() for clouds, kinds in loader]
    model.train()
    return torch.cat(hits).mean().item()


def main(args):
    torch.manual_seed(args.seed)
    train_loader = DataLoader(make_clouds(args.clouds, args.points, args.seed), args.batch_size, shuffle=True)
    eval_loader = DataLoader(make_clouds(128, args.points, args.seed + 77), 64)
    model = PointNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    launcher = Launcher(max_grad_norm=5.0)
    model, optimizer, train_loader = launcher.prepare(model, optimizer, train_loader)

    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    model.train()
    for epoch in range(args.epochs):
        running = 0.0
        for clouds, kinds in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(clouds), kinds)
            launcher.backward(loss, model)
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}: loss {running / len(train_loader):.3f} accuracy {evaluate(model, eval_loader):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--clouds", type=int, default=256)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=40)
    main(parser.parse_args())
