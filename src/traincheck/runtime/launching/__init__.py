"""Launching: start the command with TrainCheck attached, and decide which rules its processes check."""
