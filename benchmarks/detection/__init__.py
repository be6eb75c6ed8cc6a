"""The silent-error benchmark: reproduces 50 real errors and counts how many TrainCheck detects."""
