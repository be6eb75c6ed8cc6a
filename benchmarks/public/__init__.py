"""Public training programs, each run plain and under `traincheck run`."""
