"""Sketches the operations of a step, so that `traincheck compare` finds the first that differs between two runs."""
