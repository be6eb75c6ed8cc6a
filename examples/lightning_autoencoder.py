"""A sparse autoencoder with tied weights on the digits, trained by Lightning."""

import argparse
import tempfile

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsData(pl.LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        images = torch.tensor(load_digits().data, dtype=torch.float32) / 16.0
        split = torch.Generator().manual_seed(0)
        self.train_set, self.val_set = random_split(TensorDataset(images), [1408, 389], generator=split)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 256)


class SparseAutoencoder(pl.LightningModule):
    def __init__(self, codes=96, sparsity=0.05, noise=0.1, lr=4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.weight = nn.Parameter(torch.empty(codes, 64))
        self.code_bias = nn.Parameter(torch.zeros(codes))
        self.pixel_bias = nn.Parameter(torch.zeros(64))
        nn.init.orthogonal_(self.weight)

    def encode(self, pixels):
        return F.relu(F.linear(pixels - self.pixel_bias, self.weight, self.code_bias))

    def decode(self, codes):
        return F.linear(codes, self.weight.t(), self.pixel_bias)

    def forward(self, pixels):
        return self.decode(self.encode(pixels))

    def training_step(self, batch, batch_idx):
        (pixels,) = batch
        codes = self.encode(pixels + self.hparams.noise * torch.randn_like(pixels))
        error = F.mse_loss(self.decode(codes), pixels, reduction="none").sum(dim=1).mean()
        penalty = codes.abs().sum(dim=1).mean()
        loss = error + self.hparams.sparsity * penalty
        self.log_dict({"train_loss": loss, "train_error": error}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        (pixels,) = batch
        codes = self.encode(pixels)
        error = F.mse_loss(self.decode(codes), pixels, reduction="none").sum(dim=1).mean()
        self.log_dict({"val_error": error, "active": (codes > 0).float().mean()})

    def configure_optimizers(self):
        optimizer = torch.optim.Adamax(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_error"}}


class PrintMetrics(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        metrics = trainer.callback_metrics
        print(
            f"epoch {trainer.current_epoch}: train loss {metrics['train_loss']:.3f}, "
            f"error {metrics['val_error']:.3f}, active {metrics['active']:.1%}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-epochs", type=int, default=3)
    parser.add_argument("--codes", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pl.seed_everything(args.seed, workers=True)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(dirpath=folder, monitor="val_error", mode="min", save_last=True)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=args.max_epochs,
            gradient_clip_val=5.0,
            callbacks=[checkpoint, PrintMetrics()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = DigitsData()
        model = SparseAutoencoder(codes=args.codes)
        before = trainer.validate(model, datamodule=data, verbose=False)[0]
        print(f"before training: error {before['val_error']:.3f}")
        trainer.fit(model, datamodule=data)

        best = SparseAutoencoder.load_from_checkpoint(checkpoint.best_model_path)
        after = trainer.validate(best, datamodule=data, verbose=False)[0]
        print(f"best checkpoint: error {after['val_error']:.3f}, active {after['active']:.1%}")


if __name__ == "__main__":
    main()
