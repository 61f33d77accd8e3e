"""MoI's analyses: what an order loses when reversed, what the gold passage's place does, how orders differ.

Importing this loads no torch.
"""

from __future__ import annotations

from fastreader.moi.analyses.first_token import first_token_distances, partition_means
from fastreader.moi.analyses.gold import GoldPlaces, GoldRanks, gold_places, gold_ranks
from fastreader.moi.analyses.mean_bias import MeanBias, mean_bias
from fastreader.moi.analyses.polarity import Polarity, polarity

__all__ = [
    "GoldPlaces",
    "GoldRanks",
    "MeanBias",
    "Polarity",
    "first_token_distances",
    "gold_places",
    "gold_ranks",
    "mean_bias",
    "partition_means",
    "polarity",
]
