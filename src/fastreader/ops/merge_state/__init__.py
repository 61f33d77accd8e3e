"""Joining attention states over disjoint keys."""

from fastreader.ops.merge_state.api import merge_state

__all__ = ["merge_state"]
