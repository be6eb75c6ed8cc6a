"""What it takes to learn from a recording and to check one, as both grow."""
