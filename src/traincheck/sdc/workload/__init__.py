"""Workload: the training that a screening, a study or the doctor executes."""
