"""Whether what is learned from some scripts holds for others: false alarms and triggered rules."""
