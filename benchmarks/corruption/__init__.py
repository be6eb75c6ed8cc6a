"""Corruption: which injected hardware faults are found, by what, and how soon. No part of TrainCheck."""
