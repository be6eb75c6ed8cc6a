"""Inference: from occasions to tallies to invariants, with the reason why each candidate lived or died."""
