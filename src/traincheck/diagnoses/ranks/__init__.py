"""Diagnoses about several ranks."""

TITLE = "Several ranks"
