"""Store recorded events in a run folder, and read them back."""
