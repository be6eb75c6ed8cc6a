"""Guess the language of a text with a pipeline of two stages, of which only the second has experts.

torchrun --standalone --nproc-per-node 2 guess_language.py
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from dialects import Dialects
from stage_clip import clip_groups
from stages import ExpertStage, LetterStage

FIRST, LAST = 0, 1
LIMITS = {"dense": 1.0, "embedding": 0.1, "experts": 0.3}


class Pipeline:
    """This worker's stage, and the schedule: the batch goes through both stages in micro-batches, and back."""

    def __init__(self, width, lr, micro_batches):
        self.rank = dist.get_rank()
        self.width = width
        self.micro_batches = micro_batches
        self.stage = LetterStage(width) if self.rank == FIRST else ExpertStage(width)
        self.optimizer = torch.optim.SGD(self.stage.parameters(), lr=lr, momentum=0.9)

    def train_step(self, letters, languages):
        self.stage.train()
        self.optimizer.zero_grad()
        loss = self.run_first(letters) if self.rank == FIRST else self.run_last(languages, letters.shape[1])
        clip_groups(self.stage, LIMITS)
        self.optimizer.step()
        dist.broadcast(loss, src=LAST)
        return loss.item()

    def run_first(self, letters):
        outputs, sending = [], []
        for micro in letters.chunk(self.micro_batches):
            outputs.append(self.stage(micro))
            sending.append(dist.isend(outputs[-1].detach(), dst=LAST))
        for output in outputs:
            gradient = torch.empty(output.shape)
            dist.recv(gradient, src=LAST)
            output.backward(gradient)
        for work in sending:
            work.wait()
        return torch.zeros(())

    def run_last(self, languages, length):
        total, inputs, sending = torch.zeros(()), [], []
        for micro in languages.chunk(self.micro_batches):
            x = torch.empty(len(micro), length, self.width)
            dist.recv(x, src=FIRST)
            x.requires_grad_()
            loss = F.cross_entropy(self.stage(x), micro) / self.micro_batches
            loss.backward()
            total += loss.detach()
            inputs.append(x)
            sending.append(dist.isend(x.grad, dst=FIRST))
        for work in sending:
            work.wait()
        return total

    @torch.no_grad()
    def accuracy(self, letters, languages):
        self.stage.eval()
        right = torch.zeros(())
        if self.rank == FIRST:
            dist.send(self.stage(letters), dst=LAST)
        else:
            x = torch.empty(*letters.shape, self.width)
            dist.recv(x, src=FIRST)
            right += (self.stage(x).argmax(dim=1) == languages).float().mean()
        dist.broadcast(right, src=LAST)
        return right.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    pipeline = Pipeline(args.width, args.lr, args.micro_batches)
    texts = Dialects(args.seed)
    unseen = Dialects(args.seed + 1).batch(200, args.length)
    for step in range(1, args.steps + 1):
        loss = pipeline.train_step(*texts.batch(args.batch_size, args.length))
        if step % 10 == 0:
            accuracy = pipeline.accuracy(*unseen)
            if pipeline.rank == LAST:
                print(f"step {step}: loss {loss:.3f}, accuracy {accuracy:.3f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
