"""The relation EventContain: calls and changes of state inside a call."""
