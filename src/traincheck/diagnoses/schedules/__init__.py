"""Diagnoses about learning rate schedules and run length."""

TITLE = "Learning rate schedules and run length"
