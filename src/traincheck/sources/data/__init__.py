"""Data: loaders, batches, loader workers and random states."""
