"""Diagnoses about gradients."""

TITLE = "Gradients"
