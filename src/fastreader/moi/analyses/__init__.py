"""MoI's analyses: loss from reversing an order, effect of the gold passage's place, distances between orders.

Importing this loads no torch.
"""

from __future__ import annotations

from fastreader.moi.analyses.first_token import first_token_distances, partition_means
from fastreader.moi.analyses.mean_bias import MeanBias, mean_bias
from fastreader.moi.analyses.orders import GoldPlaces, GoldRanks, Polarity, gold_places, gold_ranks, polarity

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
