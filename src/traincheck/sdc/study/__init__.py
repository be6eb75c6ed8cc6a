"""Study: compare a suspect worker with a trusted worker that executes the same training."""
