"""Passages that contradict each other: what they state, how each one reads alone, and claims tested in their text."""

from fastreader.passages.conflicts.find import conflicts
from fastreader.passages.conflicts.results import Conflicts

__all__ = ["Conflicts", "conflicts"]
