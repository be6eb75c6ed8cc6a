"""Simple detectors to compare TrainCheck with: loss, gradient norm and anomaly mode."""
