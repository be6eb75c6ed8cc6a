"""Point clouds of various sizes through top-2 experts on several ranks: first counts are exchanged, then points."""

import argparse
import math
import time

import torch
import torch.distributed as dist
from torch import nn

SHAPES = ("ring", "disc", "cross", "spiral", "square")


def draw_shapes(kind: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """A noisy point of the shape that `kind` asks for, for each of its entries."""
    t, u = torch.rand(2, len(kind), generator=rng)
    angle = 2 * math.pi * t
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    line, one, head = 2 * t - 1, torch.ones_like(t), u < 0.5
    upper = torch.stack([torch.where(head, line, one), torch.where(head, one, line)], 1)
    shapes = [
        circle,
        u.sqrt()[:, None] * circle,
        torch.stack([line, torch.where(head, line, -line)], 1),
        t[:, None] * torch.stack([(1.5 * angle).cos(), (1.5 * angle).sin()], 1),
        torch.where((u % 0.5 < 0.25)[:, None], upper, -upper),
    ]
    points = torch.stack(shapes)[kind, torch.arange(len(kind))]
    return points + 0.15 * torch.randn(points.shape, generator=rng)


def sample_batch(n_clouds: int, rng: torch.Generator):
    """All points of the batch one after another, the cloud that each belongs to, and the labels."""
    labels = torch.randint(len(SHAPES), (n_clouds,), generator=rng)
    sizes = torch.randint(12, 48, (n_clouds,), generator=rng)
    cloud_of = torch.repeat_interleave(sizes)
    return draw_shapes(labels[cloud_of], rng), cloud_of, labels


class Exchange(torch.autograd.Function):
    """`all_to_all_single` with a number of rows per rank; the gradient travels with the splits swapped."""

    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.send, ctx.receive = send, receive
        out = rows.new_empty(sum(receive), rows.size(1))
        dist.all_to_all_single(out, rows.contiguous(), output_split_sizes=receive, input_split_sizes=send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(out, grad.contiguous(), output_split_sizes=ctx.send, input_split_sizes=ctx.receive)
        return out, None, None


class Top2Experts(nn.Module):
    def __init__(self, width: int, local_experts: int):
        super().__init__()
        self.ranks = dist.get_world_size()
        self.local_experts = local_experts
        self.total_experts = self.ranks * local_experts
        self.gate = nn.Linear(width, self.total_experts, bias=False)
        self.local = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(local_experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)

        # two copies of each point, in the order of their experts and so in the order of the ranks
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.total_experts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        theirs = theirs.view(self.ranks, self.local_experts)
        send = counts.view(self.ranks, self.local_experts).sum(1).tolist()
        receive = theirs.sum(1).tolist()
        arrived = Exchange.apply(x[order // 2], send, receive)

        # they come rank by rank, and within a rank expert by expert
        owner = torch.arange(self.local_experts).repeat(self.ranks).repeat_interleave(theirs.flatten())
        processed = torch.zeros_like(arrived)
        for i, expert in enumerate(self.local):
            where = (owner == i).nonzero().squeeze(1)
            processed = processed.index_copy(0, where, expert(arrived[where]))

        back = Exchange.apply(processed, receive, send)
        scaled = back * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(x).index_add(0, order // 2, scaled)


class CloudNet(nn.Module):
    """Features of points by themselves, the mean and the largest of them per cloud, and a classifier."""

    def __init__(self, width: int, local_experts: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)
        self.moe = Top2Experts(width, local_experts)
        self.classifier = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, len(SHAPES)))

    def forward(self, points: torch.Tensor, cloud_of: torch.Tensor, n_clouds: int) -> torch.Tensor:
        h = self.stem(points)
        h = h + self.moe(self.norm(h))
        index = cloud_of[:, None].expand_as(h)
        empty = h.new_zeros(n_clouds, h.size(1))
        mean = empty.scatter_reduce(0, index, h, "mean", include_self=False)
        peak = empty.scatter_reduce(0, index, h, "amax", include_self=False)
        return self.classifier(torch.cat([mean, peak], dim=1))


class ExpertDataParallel:
    """Keeps the shared parameters of the ranks alike; experts are left to their owners."""

    def __init__(self, model: nn.Module):
        experts = {id(p) for m in model.modules() if isinstance(m, Top2Experts) for p in m.local.parameters()}
        self.expert = [p for p in model.parameters() if id(p) in experts]
        self.shared = [p for p in model.parameters() if id(p) not in experts]
        for p in self.shared:
            dist.broadcast(p.detach(), src=0)

    def average_gradients(self) -> None:
        works = [dist.all_reduce(p.grad, async_op=True) for p in self.shared]
        for work in works:
            work.wait()
        for p in (*self.shared, *self.expert):  # experts got the sum over the ranks from the exchange
            p.grad.div_(dist.get_world_size())

    def clip_gradients(self, max_norm: float) -> torch.Tensor:
        """By the norm over the shared parameters and the experts of all ranks."""
        squares = sum(p.grad.square().sum() for p in self.expert)
        dist.all_reduce(squares)
        norm = (squares + sum(p.grad.square().sum() for p in self.shared)).sqrt()
        for p in (*self.shared, *self.expert):
            p.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


def score(model: nn.Module, batches) -> float:
    was_training = model.training
    model.eval()
    tally = torch.zeros(2)
    with torch.inference_mode():
        for points, cloud_of, labels in batches:
            prediction = model(points, cloud_of, len(labels)).argmax(1)
            tally += torch.tensor([(prediction == labels).sum(), len(labels)])
    model.train(was_training)
    dist.all_reduce(tally)
    return (tally[0] / tally[1]).item()


def run(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1000 * args.seed + rank)
    model = CloudNet(width=48, local_experts=args.local_experts)
    parallel = ExpertDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.98)
    criterion = nn.CrossEntropyLoss()
    rng = torch.Generator().manual_seed(5000 * args.seed + 17 * (rank + 1))  # other clouds on each rank
    held_out = [sample_batch(64, rng) for _ in range(2)]

    model.train()
    for step in range(1, args.steps + 1):
        points, cloud_of, labels = sample_batch(args.clouds, rng)
        loss = criterion(model(points, cloud_of, len(labels)), labels)
        optimizer.zero_grad()
        loss.backward()
        parallel.average_gradients()
        norm = parallel.clip_gradients(args.max_norm)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            mean_loss = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean_loss)
            accuracy = score(model, held_out)
            if rank == 0:
                print(f"{step:3d}: loss {mean_loss:.4f}  gradient norm {norm:.3f}  held-out accuracy {accuracy:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--clouds", type=int, default=24, help="clouds per rank and step")
    parser.add_argument("--local-experts", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--max-norm", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    namespace = parser.parse_args()
    dist.init_process_group("gloo")
    run(namespace)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
