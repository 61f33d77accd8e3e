"""Passages that contradict each other: candidates under each passage alone, and claims tested in their own text."""

from fastreader.passages.conflicts.find import conflicts
from fastreader.passages.conflicts.results import Conflicts

__all__ = ["Conflicts", "conflicts"]
