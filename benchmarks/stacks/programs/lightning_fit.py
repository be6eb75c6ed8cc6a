"""Lightning's Trainer: validation, accumulation, clipping, a schedule by step, checkpoints, and resuming."""

import argparse
import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tiny import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", message=".*(num_workers|does not have many workers).*")


def make_data(count, seed):
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 8, 8, generator=draw)
    labels = (images[:, 0, :4].mean(dim=(1, 2)) > images[:, 0, 4:].mean(dim=(1, 2))).long()
    return TensorDataset(images, labels)


class Classifier(L.LightningModule):
    def __init__(self, rate=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 2))

    def forward(self, images):
        return self.head(self.features(images))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.log("val_loss", F.cross_entropy(logits, labels), prog_bar=True)
        self.log("val_accuracy", (logits.argmax(-1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.rate, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(seed, folder, checkpoint=None):
    L.seed_everything(seed, verbose=False)
    model = Classifier()
    keep = ModelCheckpoint(dirpath=f"{folder}/checkpoints", every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        val_check_interval=0.5,
        callbacks=[keep, LearningRateMonitor("step")],
        logger=CSVLogger(folder),
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(make_data(264, seed), batch_size=16, shuffle=True)
    trainer.fit(model, loader, DataLoader(make_data(64, seed + 1000), batch_size=32), ckpt_path=checkpoint)
    metrics = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
    print("steps", trainer.global_step, metrics)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("weights", digest(fit(args.seed, folder)))
        print("resumed weights", digest(fit(args.seed, folder, f"{folder}/checkpoints/epoch=0.ckpt")))


if __name__ == "__main__":
    main()
