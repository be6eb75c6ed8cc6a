"""Benchmarks: each folder is one command, `python -m benchmarks.NAME`; results are kept as data in `results/`."""
