"""A speech encoder on raw sound: strided convolutions, positions, and attention layers on top."""

import torch
from pretrained_base import PreTrainedBase, SpeechConfig
from torch import nn


class FeatureExtractor(nn.Module):
    def __init__(self, config):
        super().__init__()
        sizes = [(1, 16, 8), (config.conv_dim, 8, 4), (config.conv_dim, 4, 2)]
        self.convs = nn.ModuleList(
            nn.Conv1d(inputs, config.conv_dim, kernel, stride=stride) for inputs, kernel, stride in sizes
        )
        self.group_norm = nn.GroupNorm(4, config.conv_dim)

    def forward(self, sound):
        x = sound.unsqueeze(1)
        for conv in self.convs:
            x = nn.functional.gelu(conv(x))
        return self.group_norm(x).transpose(1, 2)


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size)
        self.attention = SelfAttention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden_size, config.intermediate_size),
            nn.GELU(),
            nn.Linear(config.intermediate_size, config.hidden_size),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class SpeechEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.extractor = FeatureExtractor(config)
        self.projection = nn.Linear(config.conv_dim, config.hidden_size)
        self.positions = nn.Parameter(torch.zeros(config.max_frames, config.hidden_size))
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))

    def forward(self, sound):
        x = self.projection(self.extractor(sound))
        x = x + self.positions[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x


class SpeechClassifier(PreTrainedBase):
    """Mean over time of the encoder's frames, and a linear head."""

    def __init__(self, config: SpeechConfig):
        super().__init__(config)
        self.encoder = SpeechEncoder(config)
        self.final_norm = nn.LayerNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, sound, labels=None):
        logits = self.head(self.final_norm(self.encoder(sound)).mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return loss, logits
