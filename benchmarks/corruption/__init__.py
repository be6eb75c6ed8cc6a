"""Measures which injected hardware faults each detector finds, and how soon."""
