"""Faults: what a defective device does to tensors, and how to inject it into a training."""
