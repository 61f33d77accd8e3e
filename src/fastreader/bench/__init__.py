"""What a user would gain on their own machine and model: our pass beside transformers'."""

from fastreader.bench.compare import Comparison, Way, compare
from fastreader.bench.groups import Group

__all__ = ["Comparison", "Group", "Way", "compare"]
