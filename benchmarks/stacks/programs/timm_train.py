"""Training in the style of timm: layer decay, mixup, clipping, a schedule of updates, an averaged model, resuming."""

import argparse
import sys
import tempfile
from pathlib import Path

# timm needs torchvision, which other packages import where they find it; both lie in a folder of their own.
sys.path.insert(0, str(Path(sys.prefix, "timm")))

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, NativeScaler, accuracy, random_seed
from tiny import digest
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, IMAGES, BATCH, ACCUMULATION = 6, 512, 32, 2
PARTS = ("model", "optimizer", "schedule", "scaler", "average")


def make_images(count, draw):
    """Noisy images of ten patterns."""
    patterns = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (count,), generator=draw)
    return TensorDataset(patterns[labels] + 0.3 * torch.randn(count, 1, 8, 8, generator=draw), labels)


def make_data(seed):
    """Loaders of training and validation images."""
    draw = torch.Generator().manual_seed(seed)
    training, validation = make_images(IMAGES, draw), make_images(256, draw)
    loader = DataLoader(training, batch_size=BATCH, shuffle=True, drop_last=True, generator=draw)
    return loader, DataLoader(validation, batch_size=64)


class Job:
    """All parts of a training that a checkpoint holds."""

    def __init__(self, seed):
        random_seed(seed)
        self.model = timm.create_model(
            "vit_tiny_patch16_224",
            img_size=8,
            patch_size=2,
            in_chans=1,
            embed_dim=48,
            depth=3,
            num_heads=3,
            num_classes=10,
            reg_tokens=2,
            drop_path_rate=0.1,
        )
        self.optimizer = create_optimizer_v2(self.model, "adamw", lr=2e-3, weight_decay=0.05, layer_decay=0.7)
        self.schedule, _ = create_scheduler_v2(
            self.optimizer,
            sched="cosine",
            num_epochs=EPOCHS,
            warmup_epochs=1,
            warmup_lr=1e-5,
            step_on_epochs=False,
            updates_per_epoch=IMAGES // BATCH // ACCUMULATION,
        )
        self.scaler = NativeScaler(device="cpu")
        self.average = ModelEmaV3(self.model, decay=0.98, use_warmup=True)
        self.updates = 0

    def state(self):
        """What a checkpoint holds."""
        return {name: getattr(self, name).state_dict() for name in PARTS} | {"updates": self.updates}

    def load(self, state):
        """Go on from a checkpoint."""
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.updates = state["updates"]


def train_one_epoch(epoch, job, loader, seed):
    random_seed(seed + 100 * epoch)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=0.0, prob=0.5, label_smoothing=0.1, num_classes=10)
    loss_fn = SoftTargetCrossEntropy()
    job.model.train()
    job.optimizer.zero_grad()
    for number, (images, labels) in enumerate(loader):
        images, targets = mixup(images, labels)
        need_update = (number + 1) % ACCUMULATION == 0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(job.model(images).float(), targets) / ACCUMULATION
        job.scaler(loss, job.optimizer, clip_grad=1.0, parameters=job.model.parameters(), need_update=need_update)
        if not need_update:
            continue
        job.updates += 1
        job.optimizer.zero_grad()
        job.average.update(job.model, step=job.updates)
        job.schedule.step_update(num_updates=job.updates)
    return loss.item() * ACCUMULATION


@torch.no_grad()
def validate(model, loader):
    model.eval()
    outputs = [(model(images), labels) for images, labels in loader]
    logits, labels = (torch.cat(part) for part in zip(*outputs, strict=True))
    return accuracy(logits, labels)[0].item()


def run(job, seed, epochs, save=None):
    loader, validation = make_data(seed)
    for epoch in range(EPOCHS):
        if epoch not in epochs:  # the loader's order goes on where the interrupted run stopped
            for _ in loader:
                pass
            continue
        loss = train_one_epoch(epoch, job, loader, seed)
        job.schedule.step(epoch + 1)
        print(f"epoch {epoch} loss {loss:.5f} accuracy {validate(job.model, validation):.2f}", end=" ")
        print(f"of the average {validate(job.average.module, validation):.2f}")
        if save and epoch == EPOCHS // 2 - 1:
            torch.save(job.state(), save)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(args.seed)
        run(job, args.seed, range(EPOCHS), f"{folder}/middle.pt")
        print("weights", digest(job.model))
        again = Job(args.seed)
        again.load(torch.load(f"{folder}/middle.pt", weights_only=False))
        run(again, args.seed, range(EPOCHS // 2, EPOCHS))
        print("resumed weights", digest(again.model), "equal:", digest(again.model) == digest(job.model))


if __name__ == "__main__":
    main()
