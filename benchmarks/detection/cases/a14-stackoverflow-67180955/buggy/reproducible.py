"""Seeds for runs that can be repeated, in the process itself and in the workers of its data loaders."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class WorkerSeed:
    """Seeds the generators of a worker when it starts."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        seed = self.seed + 1
        random.seed(seed)
        np.random.seed(seed)


def training_loader(dataset, batch_size, seed, workers=2):
    """A shuffling loader that gives the same batches in each run with the same seed and number of workers."""
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=WorkerSeed(seed),
        generator=torch.Generator().manual_seed(seed),
    )
