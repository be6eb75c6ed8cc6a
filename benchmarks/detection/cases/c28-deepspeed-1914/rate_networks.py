"""Rate random networks by how closely they are knit, with a message-passing network and micro-batches."""

import argparse

import torch
import torch.nn as nn
from gradient_buffer import GradientBuffer
from random_networks import networks


class MessagePassing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, width)
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes, links):
        received = links @ torch.relu(self.message(nodes))
        return self.update(received.flatten(0, 1), nodes.flatten(0, 1)).view_as(nodes)


class NetworkRater(nn.Module):
    def __init__(self, width, rounds=2):
        super().__init__()
        self.start = nn.Linear(2, width)
        self.rounds = nn.ModuleList(MessagePassing(width) for _ in range(rounds))
        self.rate = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, links, exists):
        degree = links.sum(-1, keepdim=True) / 4
        nodes = self.start(torch.cat([degree, degree**2], dim=-1)) * exists
        for passing in self.rounds:
            nodes = passing(nodes, links / 4) * exists
        mean = nodes.sum(1) / exists.sum(1)
        return self.rate(torch.cat([mean, nodes.amax(1)], dim=-1)).squeeze(-1)


class Training:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        self.generator = torch.Generator().manual_seed(args.seed)
        self.validation = networks(256, self.generator)
        self.model = NetworkRater(args.width)
        self.optimizer = torch.optim.NAdam(self.model.parameters(), lr=args.lr)
        self.buffer = GradientBuffer(self.model.parameters())

    def update(self):
        """One optimizer step on several micro-batches; the mean loss and the gradient norm."""
        self.model.train()
        losses = []
        for _ in range(self.args.micro_batches):
            links, exists, rating = networks(self.args.micro_batch_size, self.generator)
            loss = nn.functional.huber_loss(self.model(links, exists), rating)
            loss.backward()
            self.buffer.collect()
            losses.append(loss.item())
        norm = self.buffer.release()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(losses) / len(losses), norm

    @torch.no_grad()
    def explained(self):
        """The share of the variance of ratings that the model explains."""
        self.model.eval()
        links, exists, rating = self.validation
        return (1 - (self.model(links, exists) - rating).var() / rating.var()).item()

    def run(self):
        for number in range(1, self.args.updates + 1):
            loss, norm = self.update()
            if number % 5 == 0:
                print(f"update {number}: loss {loss:.3f}, norm {norm:.2f}, explained {self.explained():.3f}")


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=90)
    return parser.parse_args(argv)


if __name__ == "__main__":
    Training(parse()).run()
