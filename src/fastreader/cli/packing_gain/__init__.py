"""What a user would gain on their own machine and model: our pass beside transformers'."""

from fastreader.cli.packing_gain.compare import Comparison, Way, compare
from fastreader.cli.packing_gain.groups import Group

__all__ = ["Comparison", "Group", "Way", "compare"]
