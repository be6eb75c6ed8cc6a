"""The relation Periodic: patterns that repeat over training steps, and totals of a run."""
