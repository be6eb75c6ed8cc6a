"""The relation APISequence: the order of calls and changes between two calls of one API."""
