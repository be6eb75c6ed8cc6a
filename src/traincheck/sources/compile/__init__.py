"""Compile: calls of compiled models, and how TrainCheck stays out of compiled graphs."""
