"""A short depthwise convolution over each token's path."""

from fastreader.ops.causal_conv.api import causal_conv, rows_at

__all__ = ["causal_conv", "rows_at"]
