"""Optimizers: steps, parameter changes, optimizer state and hyperparameters."""
