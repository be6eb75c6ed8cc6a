"""What all models of the family share: a configuration, how weights start, and counting parameters."""

from dataclasses import dataclass

from torch import nn


@dataclass
class SpeechConfig:
    conv_dim: int = 24
    hidden_size: int = 32
    num_heads: int = 4
    num_layers: int = 2
    intermediate_size: int = 64
    max_frames: int = 64
    num_labels: int = 6
    initializer_range: float = 0.05


class PreTrainedBase(nn.Module):
    """Base of all models. A model calls `post_init()` at the end of its constructor."""

    def __init__(self, config: SpeechConfig):
        super().__init__()
        self.config = config

    def post_init(self):
        """Start all weights the way this family does."""
        self.apply(self._init_weights)

    def _init_weights(self, module):
        for name, param in module.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(param)
            elif param.dim() == 1:
                nn.init.ones_(param)
            elif param.dim() == 3:
                nn.init.kaiming_normal_(param)
            else:
                nn.init.normal_(param, std=self.config.initializer_range)

    def num_parameters(self):
        return sum(param.numel() for param in self.parameters())
