"""How inference goes with ten million events, on this machine and on a Ray cluster of more and more workers."""
