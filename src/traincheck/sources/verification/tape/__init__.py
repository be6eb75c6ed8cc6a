"""The recorded computation of a step, which can be executed again as a pure function."""
