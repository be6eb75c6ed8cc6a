"""Measures whether rules learned from some scripts hold for others: false alarms and triggered rules."""
