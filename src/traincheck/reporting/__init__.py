"""Sinks: tell a report to people and to programs. They know what a report says, and not how it came about."""
