"""A PointNet-like classifier of small point clouds, trained with Accelerate on two CPU processes."""

# torchrun --standalone --nproc-per-node 2 accelerate_ddp.py

import argparse
import tempfile
import time

import torch
import torch.nn as nn
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, set_seed
from torch.utils.data import DataLoader, TensorDataset

SHAPES = ("sphere", "cube", "cylinder", "cone")


def sample_cloud(shape, n_points, generator):
    """Points on the surface of a shape, stretched and turned about the vertical axis."""
    uniform = 2 * torch.rand(n_points, 3, generator=generator) - 1
    angle = torch.pi * uniform[:, 0]
    ring = torch.stack([angle.cos(), angle.sin()], dim=1)
    height = uniform[:, 1:2]
    if shape == "sphere":
        points = torch.cat([ring * (1 - height**2).sqrt(), height], dim=1)
    elif shape == "cube":
        points = 0.8 * uniform / uniform.abs().amax(dim=1, keepdim=True)
    elif shape == "cylinder":
        points = torch.cat([0.8 * ring, height], dim=1)
    else:
        points = torch.cat([ring * (1 - height) / 2, height], dim=1)
    turn = 2 * torch.pi * torch.rand((), generator=generator)
    c, s = turn.cos(), turn.sin()
    rotation = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    stretch = 0.8 + 0.4 * torch.rand(3, generator=generator)
    return (points * stretch) @ rotation + 0.02 * torch.randn(n_points, 3, generator=generator)


def make_dataset(n, seed, n_points=48):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SHAPES), (n,), generator=generator)
    clouds = torch.stack([sample_cloud(SHAPES[label], n_points, generator) for label in labels.tolist()])
    return TensorDataset(clouds, labels)


class PointNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.per_point = nn.Sequential(
            nn.Linear(3, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, 128)
        )
        self.classifier = nn.Sequential(
            nn.Linear(128, width), nn.LeakyReLU(0.1), nn.Dropout(0.1), nn.Linear(width, len(SHAPES))
        )

    def forward(self, clouds):
        features = self.per_point(clouds)  # batch, points, channels
        return self.classifier(features.amax(dim=1))  # the order of the points does not matter


def get_dataloaders(args):
    train_dataloader = DataLoader(make_dataset(1536, args.seed), shuffle=True, batch_size=args.batch_size)
    eval_dataloader = DataLoader(make_dataset(300, args.seed + 1), batch_size=64)
    return train_dataloader, eval_dataloader


def evaluate(accelerator, model, dataloader):
    model.eval()
    correct = seen = 0
    for clouds, labels in dataloader:
        with torch.no_grad():
            predictions = model(clouds).argmax(dim=-1)
        # drops the samples that were repeated to fill the last batch
        predictions, references = accelerator.gather_for_metrics((predictions, labels))
        correct += (predictions == references).sum().item()
        seen += len(references)
    return correct / seen, seen


def training_function(args):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)

    train_dataloader, eval_dataloader = get_dataloaders(args)
    model = PointNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    # counted before `prepare`: the prepared schedule advances once per process
    total = len(train_dataloader) * args.num_epochs // accelerator.gradient_accumulation_steps
    lr_scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=0.9)

    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    criterion = nn.CrossEntropyLoss()

    with tempfile.TemporaryDirectory() as own_folder:
        folder = broadcast_object_list([own_folder])[0]
        best = 0.0
        for epoch in range(args.num_epochs):
            model.train()
            total_loss = torch.zeros((), device=accelerator.device)
            for clouds, labels in train_dataloader:
                with accelerator.accumulate(model):
                    loss = criterion(model(clouds), labels)
                    total_loss += loss.detach()
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    lr_scheduler.step()
                    optimizer.zero_grad()

            train_loss = accelerator.reduce(total_loss / len(train_dataloader), reduction="mean").item()
            accuracy, seen = evaluate(accelerator, model, eval_dataloader)
            accelerator.print(f"epoch {epoch}: train loss {train_loss:.3f}, accuracy {accuracy:.3f} of {seen} clouds")
            if accuracy > best:
                best = accuracy
                accelerator.save_state(f"{folder}/best")

        accelerator.wait_for_everyone()
        accelerator.load_state(f"{folder}/best")
        accuracy, _ = evaluate(accelerator, model, eval_dataloader)
        accelerator.print(f"best: accuracy {accuracy:.3f}")
        accelerator.wait_for_everyone()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32, help="per process and backward pass")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
    PartialState().wait_for_everyone()
    PartialState().destroy_process_group()
    time.sleep(0.5)
