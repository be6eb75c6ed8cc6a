"""Packs: the books that come with TrainCheck, made from the examples."""
