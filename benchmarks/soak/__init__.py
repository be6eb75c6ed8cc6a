"""Measures memory, disk and time of long runs, at the beginning and at the end."""
