"""Functions: torch functions, context managers and functions of the program."""
