"""Sinks write reports for people and for programs. They depend on the contents of a report only."""
