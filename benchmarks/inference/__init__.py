"""Measures the cost of learning from recordings and of checking them, for growing sizes."""
