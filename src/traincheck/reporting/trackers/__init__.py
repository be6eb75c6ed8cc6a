"""Log findings and a few curves of a running program to TensorBoard, Weights & Biases and MLflow."""
