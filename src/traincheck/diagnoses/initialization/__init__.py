"""Diagnoses about initialization."""

TITLE = "Initialization"
