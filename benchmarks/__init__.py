"""Measures TrainCheck: each folder is one command, `python -m benchmarks.NAME`, and keeps its results in `results/`."""
