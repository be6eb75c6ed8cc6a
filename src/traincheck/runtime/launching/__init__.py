"""Starts your command with TrainCheck attached, and selects the rules that its processes check."""
