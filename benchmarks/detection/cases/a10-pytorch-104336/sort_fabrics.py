"""Sort fabrics by weave with an MLP-Mixer under DDP. The model makes room for a neighbour search after each epoch.

torchrun --standalone --nproc-per-node 2 sort_fabrics.py
"""

import argparse
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fabrics import SIDE, WEAVES, swatches
from mixer import Mixer
from offload import Offload
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--swatches", type=int, default=480)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for patches, weaves in loader:
        loss = F.cross_entropy(model(patches), weaves)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def features_of(model, patches):
    model.eval()
    return F.normalize(model.module.features(patches), dim=1)


def neighbours_agree(known, known_weaves, unknown, unknown_weaves, k=5):
    """The share of unknown swatches of which most of the nearest known ones have the same weave."""
    nearest = (unknown @ known.T).topk(k, dim=1).indices
    return (known_weaves[nearest].mode(dim=1).values == unknown_weaves).float().mean().item()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    patches, weaves = swatches(args.swatches, args.seed)
    new_patches, new_weaves = swatches(120, args.seed + 77)
    dataset = TensorDataset(patches, weaves)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)

    model = DistributedDataParallel(Mixer(SIDE, 4, len(WEAVES), args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    with tempfile.TemporaryDirectory() as folder:
        offload = Offload(model, optimizer, folder)
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            loss = train_epoch(model, loader, optimizer)
            known, unknown = features_of(model, patches), features_of(model, new_patches)
            with offload.away():
                agree = neighbours_agree(known, weaves, unknown, new_weaves)
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}: loss {loss:.3f}, neighbours agree {agree:.3f}", flush=True)
        dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
