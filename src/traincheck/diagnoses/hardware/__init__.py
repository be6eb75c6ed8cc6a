"""Diagnoses about hardware."""

TITLE = "Hardware"
