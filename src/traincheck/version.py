"""The version of TrainCheck."""

__version__ = "0.1.0"
