"""Linear layers in three precisions."""

from fastreader.ops.linear.api import IMPLEMENTATIONS, linear

__all__ = ["IMPLEMENTATIONS", "linear"]
