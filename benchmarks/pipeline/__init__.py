"""Whether a pipeline's own rules keep quiet on its next clean run, and say what changed where something did."""
