"""Measures the cost of observation: step time of full collection and live checking against the plain program."""
