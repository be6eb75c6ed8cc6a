"""Trackers: the findings and a few curves of a run, as it goes on, in TensorBoard, Weights & Biases and MLflow."""
