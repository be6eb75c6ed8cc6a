"""Measures the cost of comparing ranks, on this machine and in simulated jobs that are too large for it."""
