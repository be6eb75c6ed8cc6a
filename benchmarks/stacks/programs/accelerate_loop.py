"""A loop of your own with Accelerate: accumulation, clipping, a schedule, evaluation, checkpoints, and resuming."""

import argparse
import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import GradientAccumulationPlugin, ProjectConfiguration, set_seed
from tiny import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ACCUMULATION, BATCH = 3, 2, 16


def make_data(count, seed):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 12, generator=draw)
    labels = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] > 0).long() + (inputs[:, 3] > 1).long()
    return TensorDataset(inputs, labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 48))
        self.head = nn.Linear(48, 3)

    def forward(self, inputs):
        return self.head(F.gelu(self.body(inputs)))


def evaluate(accelerator, model, loader):
    model.eval()
    correct = []
    for inputs, labels in loader:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=-1)
        predictions, labels = accelerator.gather_for_metrics((predictions, labels))
        correct.append((predictions == labels).float())
    return torch.cat(correct).mean().item()


def train(seed, folder, sync_each_batch, resume=None):
    """Train for all epochs, or from the checkpoint `resume`: its folder, its epoch and its batches in that epoch."""
    set_seed(seed)
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=False)
    loading = DataLoaderConfiguration(use_seedable_sampler=True)
    accumulation = GradientAccumulationPlugin(num_steps=ACCUMULATION, sync_each_batch=sync_each_batch)
    accelerator = Accelerator(
        gradient_accumulation_plugin=accumulation, cpu=True, project_config=project, dataloader_config=loading
    )
    model = Classifier()
    decayed = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    loader = DataLoader(make_data(152, seed), batch_size=BATCH, shuffle=True)
    evaluation = DataLoader(make_data(96, seed + 1000), batch_size=32)
    updates = EPOCHS * -(-len(loader) // ACCUMULATION)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=updates)
    model, optimizer, loader, evaluation, schedule = accelerator.prepare(model, optimizer, loader, evaluation, schedule)
    first_epoch, skipped = 0, 0
    if resume:
        accelerator.load_state(resume[0])
        first_epoch, skipped = resume[1:]
    for epoch in range(first_epoch, EPOCHS):
        model.train()
        loader.set_epoch(epoch)
        batches = accelerator.skip_first_batches(loader, skipped) if skipped else loader
        start, skipped, total = skipped, 0, 0.0
        for batch, (inputs, labels) in enumerate(batches, start):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.item()
            if batch == len(loader) // 2:
                accelerator.print(f"half of epoch {epoch} accuracy {evaluate(accelerator, model, evaluation):.4f}")
                model.train()
            if not resume and epoch == 1 and batch == 3:
                accelerator.save_state(f"{folder}/middle")
        accuracy = evaluate(accelerator, model, evaluation)
        rate = schedule.get_last_lr()[0]
        accelerator.print(f"epoch {epoch} loss {total / len(loader):.6f} accuracy {accuracy:.4f} rate {rate:.6f}")
    accelerator.end_training()
    return accelerator.unwrap_model(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync-each-batch", action="store_true", help="exchange the gradients of each micro-batch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = train(args.seed, folder, args.sync_each_batch)
        print("weights", digest(model))
        again = train(args.seed, folder, args.sync_each_batch, resume=(f"{folder}/middle", 1, 4))
        print("resumed weights", digest(again))


if __name__ == "__main__":
    main()
