"""Attention over a packed prefix tree."""

from fastreader.ops.tree_attention.api import tree_attention
from fastreader.ops.tree_attention.plan import AttentionPlan
from fastreader.ops.tree_attention.schedule import Schedule

__all__ = ["AttentionPlan", "Schedule", "tree_attention"]
