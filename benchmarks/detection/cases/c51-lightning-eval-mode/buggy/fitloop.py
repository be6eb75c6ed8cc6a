"""A loop that fits a recipe: a module that knows its own training step, validation step and optimizer."""

import torch
from torch import nn


class Recipe(nn.Module):
    def training_step(self, batch):
        """The loss of a batch."""
        raise NotImplementedError

    def validation_step(self, batch):
        """Metrics of a batch as a dictionary of numbers."""
        raise NotImplementedError

    def configure_optimizers(self):
        """The optimizer and a schedule that is stepped after each update."""
        raise NotImplementedError


class ModuleModes:
    """Which modules are in training mode, so that parts that a user has put into eval mode stay there."""

    def __init__(self):
        self.modes = {}

    def capture(self, root):
        self.modes = {name: module.training for name, module in root.named_modules()}

    def restore(self, root):
        for name, module in root.named_modules():
            module.training = self.modes[name]


class FitLoop:
    """Fits for some epochs, and validates each time after `validate_every` updates."""

    def __init__(self, max_epochs, validate_every):
        self.max_epochs = max_epochs
        self.validate_every = validate_every
        self.global_step = 0
        self.modes = ModuleModes()

    def fit(self, recipe, train_loader, val_loader):
        optimizer, schedule = recipe.configure_optimizers()
        recipe.train()
        for epoch in range(self.max_epochs):
            for batch in train_loader:
                optimizer.zero_grad()
                loss = recipe.training_step(batch)
                loss.backward()
                optimizer.step()
                schedule.step()
                self.global_step += 1
                if self.global_step % self.validate_every == 0:
                    metrics = self.validate(recipe, val_loader)
                    shown = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
                    print(f"epoch {epoch}, step {self.global_step}: training loss {loss.item():.3f}; held out: {shown}")

    def validate(self, recipe, loader):
        """The mean of the metrics over the batches of a loader."""
        recipe.eval()
        self.modes.capture(recipe)
        with torch.no_grad():
            outputs = [recipe.validation_step(batch) for batch in loader]
        self.modes.restore(recipe)
        return {name: sum(output[name] for output in outputs) / len(outputs) for name in outputs[0]}
