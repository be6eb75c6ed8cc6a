"""Decides which windows to observe, check and write, and limits the overhead."""
