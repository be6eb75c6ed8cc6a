"""Find silent data corruption: hardware that computes wrong results without reporting an error."""
