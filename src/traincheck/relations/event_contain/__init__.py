"""EventContain: a call contains another call or a change of a variable."""
