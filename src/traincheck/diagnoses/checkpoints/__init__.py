"""Diagnoses about checkpoints and restarts."""

TITLE = "Checkpoints and restarts"
