"""Comparisons of the ranks of a job: their copies of values, their batches and their seeds."""
