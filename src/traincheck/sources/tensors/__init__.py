"""Tensors: fingerprints and facts of values, read without changing the observed program."""
