"""Follow a strange attractor: an LSTM predicts the next states of Lorenz trajectories, some steps ahead."""

from argparse import ArgumentParser

import torch
from attractor import trajectories
from clipping import clip_gradients
from torch import nn

BURN_IN, HORIZON = 12, 8
MAX_NORM = 10.0


class Follower(nn.Module):
    """Reads the beginning of a trajectory, then goes on from its own predictions."""

    def __init__(self, hidden):
        super().__init__()
        self.cell = nn.LSTM(3, hidden, num_layers=1, batch_first=True)
        self.change = nn.Linear(hidden, 3)
        self.register_buffer("centre", torch.tensor([0.0, 0.0, 24.0]))
        self.register_buffer("spread", torch.tensor([8.0, 9.0, 8.5]))

    def forward(self, known, steps):
        hidden, memory = self.cell((known - self.centre) / self.spread)
        state = known[:, -1:] + self.change(hidden[:, -1:])
        predicted = [state]
        for _ in range(steps - 1):
            hidden, memory = self.cell((state - self.centre) / self.spread, memory)
            state = state + self.change(hidden)
            predicted.append(state)
        return torch.cat(predicted, dim=1)


def batches(paths, size, generator):
    """Endless random cuts of the trajectories."""
    while True:
        which = torch.randint(len(paths), (size,), generator=generator)
        start = torch.randint(paths.shape[1] - BURN_IN - HORIZON, (size, 1), generator=generator)
        cut = paths[which[:, None], start + torch.arange(BURN_IN + HORIZON)]
        yield cut[:, :BURN_IN], cut[:, BURN_IN:]


@torch.no_grad()
def distance(model, paths):
    """The mean distance to the true states over the horizon."""
    model.eval()
    predicted = model(paths[:, :BURN_IN], HORIZON)
    model.train()
    return (predicted - paths[:, BURN_IN : BURN_IN + HORIZON]).norm(dim=-1).mean().item()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=80)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    paths, unseen = trajectories(24, 100, generator), trajectories(48, BURN_IN + HORIZON, generator)
    model = Follower(args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    print(f"distance before training {distance(model, unseen):.2f}")
    model.train()
    for step, (known, future) in zip(range(1, args.steps + 1), batches(paths, args.batch, generator), strict=False):
        optimizer.zero_grad()
        loss = (model(known, HORIZON) - future).square().sum(dim=(1, 2)).mean()
        loss.backward()
        norm = clip_gradients(model.parameters(), MAX_NORM)
        optimizer.step()
        if step % 10 == 0:
            print(
                f"{step:4d}: loss {loss.item():8.1f}, gradient norm {norm:8.1f}, distance {distance(model, unseen):.2f}"
            )
