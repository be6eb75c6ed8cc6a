"""Checking: one engine, several drivers (offline over run folders, live inside the process), grouping into findings."""
