"""What a pass has to do at least: multiply-adds and bytes, counted from the tree and the model's config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastreader.core.tree import PrefixTree


def linear_parameters(config: Any) -> int:
    """Weights of the linear layers of a gated decoder, without embedding and LM head."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = getattr(config, "head_dim", None) or hidden // heads
    projections = hidden * size * (2 * heads + 2 * config.num_key_value_heads)
    return int(config.num_hidden_layers * (projections + 3 * hidden * config.intermediate_size))


def flops(trees: Iterable[PrefixTree], config: Any) -> dict[str, float]:
    """Useful floating-point operations (two a multiply-add): linear layers, attention's visible pairs, LM head."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    linear = attention = head = 0.0
    for tree in trees:
        linear += 2.0 * linear_parameters(config) * len(tree)
        pairs = float((tree.positions.astype(float) + 1).sum())
        attention += 4.0 * pairs * size * config.num_attention_heads * config.num_hidden_layers
        head += 2.0 * len(tree.targets) * config.hidden_size * config.vocab_size
    return {"linear": linear, "attention": attention, "head": head}
