"""What it costs to execute steps again."""
