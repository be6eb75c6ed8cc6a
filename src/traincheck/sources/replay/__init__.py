"""Replay: execute a training step again from the same state and compare the results."""
