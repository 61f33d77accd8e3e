"""Passages that contradict each other: candidates under each passage alone, and claims tested in their own text."""

from fastreader.moi.conflicts.api import conflicts
from fastreader.moi.conflicts.results import Conflicts

__all__ = ["Conflicts", "conflicts"]
