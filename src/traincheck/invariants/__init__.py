"""Invariants at rest: books that people read, compare, mute and merge."""
