"""The relation APIArg: the arguments of a call, and of calls that belong together."""
