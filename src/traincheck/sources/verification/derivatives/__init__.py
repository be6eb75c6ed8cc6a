"""The experiment that compares gradients with derivatives."""
