"""Send alerts about a run to a webhook or a command."""
