"""Alerts: what is worth waking somebody for, sent to a webhook or handed to a command."""
