"""Compares two recorded runs, and finds the first operation whose results differ although its inputs are equal."""
