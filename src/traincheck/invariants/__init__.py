"""Stored invariants: books that people read, compare, mute and merge."""
