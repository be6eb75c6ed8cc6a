"""What the augmentation draws in each worker; a batch is bad when all of its draws were made by the other one, too."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

DRAWS = ("randint", "uniform", "normal")


def watch(record):
    made, built = [], DataLoader.__init__

    def counting(draw):
        def drawn(*args, **kwargs):
            value = draw(*args, **kwargs)
            made.append(float(np.sum(value)))
            return value

        return drawn

    def loader_built(self, dataset, batch_size=1, *args, **kwargs):
        built(self, dataset, batch_size, *args, **kwargs)
        if self.num_workers:
            record(batch_size=batch_size, workers=self.num_workers)
            dataset.__class__ = type(type(dataset).__name__, (SeedRecorder, type(dataset)), {})

    class SeedRecorder(Dataset):
        def __getitem__(self, index):
            made.clear()
            item = super().__getitem__(index)
            info = get_worker_info()
            record(worker=info.id, torch_seed=torch.initial_seed(), draws=list(made))
            return item

    for name in DRAWS:
        setattr(np.random, name, counting(getattr(np.random, name)))
    DataLoader.__init__ = loader_built


def first_bad_step(ranks):
    """Workers take turns: the nth batch of worker w, counted from 0, is trained on in step n * workers + w + 1."""
    loader = next(seen for seen in ranks[0] if "batch_size" in seen)
    size, workers = loader["batch_size"], loader["workers"]
    drawn = [[seen["draws"] for seen in ranks[0] if seen.get("worker") == w] for w in range(workers)]
    assert all(drawn) and all(drawn[0]), "the workers drew nothing"
    for batch in range(min(map(len, drawn)) // size):
        batches = [draws[batch * size : (batch + 1) * size] for draws in drawn]
        for w in range(1, workers):
            if batches[w] in batches[:w]:
                return batch * workers + w + 1
    return None
