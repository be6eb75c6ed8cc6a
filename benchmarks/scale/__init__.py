"""Measures inference from ten million events, on this machine and on a Ray cluster of growing size."""
