"""Linear layers in three precisions."""

from fastreader.ops.linear.api import IMPLEMENTATIONS, linear, status

__all__ = ["IMPLEMENTATIONS", "linear", "status"]
