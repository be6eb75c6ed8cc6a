"""Events at rest: what processes observed, as files in a run folder."""
