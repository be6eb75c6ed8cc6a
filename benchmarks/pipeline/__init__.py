"""Measures false alarms of a pipeline's own rules on its next clean run, and their findings after a change."""
