"""List the sizes of the built-in decoder, and check over how many ranks each can be split. Imports no torch.

The smallest trains in milliseconds; the largest has the shapes of Llama 3 8B (Grattafiori et al., "The Llama 3 Herd of
Models", 2024, table 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.errors import BadOption

BUILT_IN = "decoder-"
"""Prefix of the names of built-in workloads: `decoder-tiny`, `decoder-8b-bf16`."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes: of the vocabulary, the residual stream, its layers, the heads (of queries; of keys and values), the
    feed-forward layer, a sequence, a batch; and the base of the rotary embedding."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    length: int
    batch: int
    rotary_base: float = 10_000.0


SIZES = {
    "tiny": DecoderConfig(64, 32, 2, 4, 2, 64, 16, 4),
    "small": DecoderConfig(512, 128, 4, 4, 2, 352, 64, 4),
    "125m": DecoderConfig(32_000, 768, 12, 12, 12, 2_048, 1_024, 8),
    "1b": DecoderConfig(128_256, 2_048, 16, 32, 8, 8_192, 2_048, 2, 500_000.0),
    "8b": DecoderConfig(128_256, 4_096, 32, 32, 8, 14_336, 4_096, 1, 500_000.0),
}


def size_of(named: str) -> DecoderConfig | None:
    """Return the sizes of a built-in workload, or None for another name."""
    return SIZES.get(named.removeprefix(BUILT_IN).partition("-")[0]) if named.startswith(BUILT_IN) else None


def check_divisible(config: DecoderConfig, ranks: int) -> None:
    """Raise BadOption if heads or hidden units cannot be split equally over this number of ranks."""
    whole = {"heads": config.heads, "heads of keys and values": config.kv_heads, "hidden numbers": config.hidden}
    odd = [f"{count} {dimension}" for dimension, count in whole.items() if count % ranks]
    if odd:
        fits = [str(n) for n in range(2, config.kv_heads + 1) if all(count % n == 0 for count in whole.values())]
        raise BadOption(
            "--tensor-parallel",
            ranks,
            f"a number that divides what the workload has ({' and '.join(odd)}): {' or '.join(fits)}; or a larger "
            "--workload",
        )
