"""Recording: which windows are observed, judged and written, and at what cost."""
