"""Diagnoses about setup and configuration."""

TITLE = "Setup and configuration"
