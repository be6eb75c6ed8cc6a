"""Diagnoses about training and evaluation mode."""

TITLE = "Training and evaluation mode"
