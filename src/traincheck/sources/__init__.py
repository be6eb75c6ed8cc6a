"""Observes a training process: the only stage besides `sdc` that imports torch. Declarations import none."""
