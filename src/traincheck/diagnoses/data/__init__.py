"""Diagnoses about data loading."""

TITLE = "Data loading"
