"""Train a VGG-like network on the scikit-learn digits under DDP, with training and validation both sharded."""

# torchrun --standalone --nproc-per-node 2 ddp_cnn.py

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


def conv_block(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(n_out, momentum=0.2),
        nn.ReLU(inplace=True),
    )


class SmallVGG(nn.Module):
    def __init__(self, width=32, n_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(1, width),
            conv_block(width, width),
            nn.MaxPool2d(2),
            conv_block(width, 2 * width),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, n_classes))

    def forward(self, x):
        return self.classifier(self.features(x))


def get_datasets(seed):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    # the same generator on each rank, hence the same split
    generator = torch.Generator().manual_seed(seed)
    return random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2], generator=generator)


def train_one_epoch(model, loader, optimizer):
    model.train()
    total = torch.zeros(2)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@torch.no_grad()
def validate(model, loader):
    """Each rank sees its own part; the sums are over all of them."""
    model.eval()
    total = torch.zeros(3)
    for images, labels in loader:
        # through the wrapper, so that all ranks use rank 0's batch norm statistics
        logits = model(images)
        total[0] += F.cross_entropy(logits, labels, reduction="sum")
        total[1] += (logits.argmax(dim=1) == labels).sum()
        total[2] += len(labels)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return (total[0] / total[2]).item(), (total[1] / total[2]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for the checkpoint (default: a temporary one)")
    args = parser.parse_args()

    rank, world_size = dist.get_rank(), dist.get_world_size()
    folder = [None]
    if rank == 0:
        folder = [args.out or tempfile.mkdtemp(prefix="ddp_cnn_")]
        Path(folder[0]).mkdir(parents=True, exist_ok=True)
    dist.broadcast_object_list(folder, src=0)
    checkpoint = Path(folder[0]) / "best.pt"

    train_set, val_set = get_datasets(args.seed)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    # every world_size-th sample: unlike DistributedSampler, this counts no sample twice
    val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world_size)), batch_size=256)

    torch.manual_seed(args.seed)
    model = DDP(SmallVGG())
    torch.manual_seed(args.seed + 1 + rank)  # dropout masks differ between ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = MultiStepLR(optimizer, milestones=[args.epochs // 2, args.epochs - 1], gamma=0.3)

    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_loss = train_one_epoch(model, train_loader, optimizer)
        val_loss, accuracy = validate(model, val_loader)
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch}: train loss {train_loss:.4f}, val loss {val_loss:.4f}, accuracy {accuracy:.4f}")
        if accuracy > best:
            best = accuracy  # the same on all ranks
            if rank == 0:
                state = {
                    "epoch": epoch,
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                }
                torch.save(state, checkpoint)

    dist.barrier()  # nobody reads before rank 0 has written
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    _, accuracy = validate(model, val_loader)
    if rank == 0:
        print(f"best epoch {state['epoch']}: accuracy {accuracy:.4f}")
    dist.barrier()  # nor removes it before all have read
    if rank == 0 and not args.out:
        shutil.rmtree(folder[0])


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # lets gloo's threads end
