"""A small trainer for models that give their own loss: `Trainer(model, arguments, dataset).train()`."""

from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader


@dataclass
class TrainingArguments:
    epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    fp16: bool = False
    logging_steps: int = 10
    seed: int = 0


class Trainer:
    """Trains a model that is called with a batch as keyword arguments and gives a dictionary with `loss`, `logits`."""

    def __init__(self, model, args, train_dataset):
        self.model = model
        self.args = args
        order = torch.Generator().manual_seed(args.seed)
        self.loader = DataLoader(train_dataset, args.batch_size, shuffle=True, drop_last=True, generator=order)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=args.fp16)
        self.global_step = 0

    def compute_loss(self, batch):
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.args.fp16):
            return self.model(**batch)["loss"]

    def clip_gradients(self):
        if self.args.max_grad_norm > 0:
            clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)

    def training_step(self, batch):
        self.model.train()
        loss = self.compute_loss(batch)
        self.scaler.scale(loss).backward()
        self.clip_gradients()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.item()

    def train(self):
        losses = []
        for epoch in range(self.args.epochs):
            for batch in self.loader:
                losses.append(self.training_step(batch))
                self.global_step += 1
                if self.global_step % self.args.logging_steps == 0:
                    recent = losses[-self.args.logging_steps :]
                    print(f"epoch {epoch + 1}, step {self.global_step}: loss {sum(recent) / len(recent):.4f}")

    @torch.no_grad()
    def evaluate(self, dataset):
        self.model.eval()
        loss, right = 0.0, 0
        for batch in DataLoader(dataset, self.args.batch_size):
            output = self.model(**batch)
            loss += output["loss"].item() * len(batch["label"])
            right += (output["logits"].argmax(-1) == batch["label"]).sum().item()
        return {"loss": round(loss / len(dataset), 4), "accuracy": round(right / len(dataset), 4)}
