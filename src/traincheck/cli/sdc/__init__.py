"""`traincheck sdc`: commands that look for silent data corruption."""
