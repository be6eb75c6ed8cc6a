"""Diagnoses about inputs and results of calls."""

TITLE = "Inputs and results of calls"
