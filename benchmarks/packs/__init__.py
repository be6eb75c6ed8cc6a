"""Learns the packs, the books that come with TrainCheck, from the examples."""
