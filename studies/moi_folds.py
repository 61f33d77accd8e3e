"""What the MoI study knows of a question beforehand: gold passage, cluster and fold."""

from __future__ import annotations

import numpy as np

from fastreader import Example
from fastreader.moi.gold import gold_of


def cluster_of(index: int, example: Example) -> str:
    """The gold passage, wherever it was retrieved; a question without one stands for itself."""
    gold = gold_of(example.passages, ("is_gold",))
    return f"question {index}" if gold is None else f"passage {example.passages[gold].id}"


def gold_rank(example: Example) -> int | None:
    """The gold passage's place in the whole retrieved list, from 1."""
    found = gold_of(example.passages, ("is_gold",))
    return None if found is None else found + 1


def folds_of(clusters: list[str], folds: int, seed: int) -> list[int]:
    """A fold for each question: clusters stay whole, and folds differ by one cluster at most."""
    distinct = list(dict.fromkeys(clusters))
    order = np.random.default_rng(seed).permutation(len(distinct)).tolist()
    fold = {distinct[c]: place % folds for place, c in enumerate(order)}
    return [fold[c] for c in clusters]
