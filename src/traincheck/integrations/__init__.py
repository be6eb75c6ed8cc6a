"""Checks a training from inside a framework, with one line in your program instead of `traincheck run`."""
