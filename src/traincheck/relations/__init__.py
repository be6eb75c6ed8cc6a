"""Relations: the knowledge. One file per relation; `template.py` is a deliberately simple one to copy."""
