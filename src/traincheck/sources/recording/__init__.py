"""Recording: hooks and observations become events, and events become windows."""
