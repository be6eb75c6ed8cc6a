"""The mutation score: how many silent errors, put into clean training scripts by operators, TrainCheck detects."""
