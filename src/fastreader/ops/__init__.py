"""Operators, one folder each: `api` (checks, dispatches, documents), `reference`, and the fast implementations."""

from fastreader.ops.dispatch import IMPLEMENTATIONS
from fastreader.ops.linear import linear
from fastreader.ops.linear_logprob import LogprobStats, linear_logprob, linear_logprob_stats
from fastreader.ops.merge_state import merge_state
from fastreader.ops.tree_attention import tree_attention

__all__ = [
    "IMPLEMENTATIONS",
    "LogprobStats",
    "linear",
    "linear_logprob",
    "linear_logprob_stats",
    "merge_state",
    "tree_attention",
]
