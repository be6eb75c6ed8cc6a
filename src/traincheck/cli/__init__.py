"""The command line: one file per command; only here do we print and exit."""
