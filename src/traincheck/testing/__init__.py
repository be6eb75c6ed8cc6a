"""A public kit for tests: traces written as a few readable lines."""
