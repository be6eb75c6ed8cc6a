"""Diagnoses about parameter updates."""

TITLE = "Parameter updates"
