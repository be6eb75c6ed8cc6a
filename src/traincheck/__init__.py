"""TrainCheck catches silent errors in deep learning training. `import traincheck` does not import torch."""

from traincheck.version import __version__

__all__ = ["__version__"]
