"""Silent data corruption: hardware that computes wrongly without failing, and how to tell it from everything else."""
