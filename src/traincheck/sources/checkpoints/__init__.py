"""Checkpoints: state dicts that a program saves or loads, and snapshots of our own."""
