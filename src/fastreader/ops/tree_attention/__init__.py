"""Attention over a packed prefix tree."""

from fastreader.ops.tree_attention.api import IMPLEMENTATIONS, tree_attention
from fastreader.ops.tree_attention.plan import AttentionPlan

__all__ = ["IMPLEMENTATIONS", "AttentionPlan", "tree_attention"]
