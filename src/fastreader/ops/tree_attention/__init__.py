"""Attention over a packed prefix tree."""

from fastreader.ops.tree_attention.api import IMPLEMENTATIONS, status, tree_attention
from fastreader.ops.tree_attention.plan import AttentionPlan
from fastreader.ops.tree_attention.schedule import Schedule, make_schedule

__all__ = ["IMPLEMENTATIONS", "AttentionPlan", "Schedule", "make_schedule", "status", "tree_attention"]
