"""Periodic: what repeats over training steps, and totals of a run."""
