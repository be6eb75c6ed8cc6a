"""Measures the cost of replaying steps."""
