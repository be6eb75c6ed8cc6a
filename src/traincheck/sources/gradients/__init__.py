"""Gradients: backward passes, gradient states and clipping."""
