"""Inference: count occasions in tallies, select rules from them, and record why each candidate was kept or dropped."""
