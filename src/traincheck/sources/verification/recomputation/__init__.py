"""The experiment that compares what activation checkpointing computes twice."""
