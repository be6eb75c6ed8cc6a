"""What simple detectors see of a run: loss, gradient norm, anomaly mode. To compare with; no part of TrainCheck."""
