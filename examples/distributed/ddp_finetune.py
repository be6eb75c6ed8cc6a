"""Learn new glyphs on a pretrained and frozen backbone under DDP, with gradients in half precision on the wire."""

# First the whole network learns one alphabet, then a new head learns another one:
#     torchrun --standalone --nproc-per-node 2 ddp_finetune.py --hook fp16

import argparse
import logging
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("finetune")

HOOKS = {"allreduce": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook}


def glyphs(n_classes, n_train, n_val, seed):
    """Noisy, shifted 12x12 pictures of `n_classes` random glyphs: a training and a validation set."""
    generator = torch.Generator().manual_seed(seed)
    strokes = (torch.rand(n_classes, 1, 5, 5, generator=generator) > 0.5).float()
    shapes = nn.functional.pad(nn.functional.interpolate(strokes, scale_factor=2), (1, 1, 1, 1))
    labels = torch.randint(n_classes, (n_train + n_val,), generator=generator)
    shifts = torch.randint(-1, 2, (n_train + n_val, 2), generator=generator).tolist()
    images = torch.stack([shapes[c].roll(s, dims=(1, 2)) for c, s in zip(labels.tolist(), shifts, strict=True)])
    images += 0.8 * torch.randn(images.shape, generator=generator)
    return TensorDataset(images[:n_train], labels[:n_train]), TensorDataset(images[n_train:], labels[n_train:])


class SeparableConv(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.depthwise = nn.Conv2d(n_in, n_in, 3, stride, padding=1, groups=n_in, bias=False)
        self.pointwise = nn.Conv2d(n_in, n_out, 1, bias=False)
        self.norm = nn.GroupNorm(4, n_out)
        self.act = nn.Hardswish()

    def forward(self, x):
        return self.act(self.norm(self.pointwise(self.depthwise(x))))


class GlyphNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Hardswish(),
            SeparableConv(16, 48, stride=2),
            SeparableConv(48, 96, stride=2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(96 * 9, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, n_classes))

    def forward(self, x):
        return self.head(self.backbone(x))

    def freeze_backbone(self):
        for param in self.backbone.parameters():
            param.requires_grad_(False)
        return self


def make_loaders(train_set, val_set, batch_size, seed):
    train_sampler = DistributedSampler(train_set, shuffle=True, seed=seed, drop_last=True)
    val_sampler = DistributedSampler(val_set, shuffle=False)  # repeats nothing where the ranks divide the set evenly
    train_loader = DataLoader(train_set, batch_size=batch_size, sampler=train_sampler, drop_last=True)
    return train_loader, DataLoader(val_set, batch_size=250, sampler=val_sampler)


def fit(phase, ddp_model, optimizer, train_loader, val_loader, epochs):
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        train_loader.sampler.set_epoch(epoch)
        ddp_model.train()
        losses = []
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(ddp_model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        score = accuracy(ddp_model.module, val_loader)
        log.info("%s epoch %d: loss %.3f, accuracy %.3f", phase, epoch, sum(losses) / len(losses), score)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2, dtype=torch.long)
    for images, labels in loader:
        counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def pretrain(args):
    loaders = make_loaders(*glyphs(10, 1280, 500, args.seed), args.batch_size, args.seed)
    model = DDP(GlyphNet(n_classes=10))
    fit("pretraining", model, torch.optim.Adam(model.parameters(), lr=3e-3), *loaders, epochs=2)
    return model.module


def finetune(args, pretrained):
    loaders = make_loaders(*glyphs(6, 640, 400, args.seed + 1000), args.batch_size // 2, args.seed)

    model = GlyphNet(n_classes=6)
    model.backbone.load_state_dict(pretrained)
    model.freeze_backbone()  # before DDP looks at which parameters need gradients
    ddp_model = DDP(model)
    ddp_model.register_comm_hook(state=None, hook=HOOKS[args.hook])
    trainable = [p for p in ddp_model.parameters() if p.requires_grad]
    log.info("%d of %d parameter tensors are trained", len(trainable), len(list(ddp_model.parameters())))
    fit("fine-tuning", ddp_model, torch.optim.Adam(trainable, lr=args.lr), *loaders, epochs=args.epochs)
    return ddp_model.module, loaders[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank, in pretraining")
    parser.add_argument("--lr", type=float, default=2e-3, help="of fine-tuning")
    parser.add_argument("--hook", choices=HOOKS, default="fp16", help="how gradients are exchanged in fine-tuning")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(args.seed)

    with tempfile.TemporaryDirectory() as own_folder:
        shared = [own_folder]
        dist.broadcast_object_list(shared, src=0)
        folder = Path(shared[0])

        model = pretrain(args)
        if rank == 0:
            torch.save(model.backbone.state_dict(), folder / "backbone.pt")
        dist.barrier()
        model, val_loader = finetune(args, torch.load(folder / "backbone.pt", weights_only=True))
        if rank == 0:
            torch.save(model.state_dict(), folder / "finetuned.pt")
        dist.barrier()

        # the file knows nothing of DDP: a plain model can read it
        restored = GlyphNet(n_classes=6)
        restored.load_state_dict(torch.load(folder / "finetuned.pt", weights_only=True))
        log.info("restored from the file: accuracy %.3f", accuracy(restored, val_loader))
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
