"""fuse: several rankings of one question's passages as one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_number, expect
from fastreader.data.documents import as_passages
from fastreader.data.merged import merged
from fastreader.data.types import Passage
from fastreader.passages.ranking.results import Reranked


@checked
def fuse(
    rankings: Iterable[Any], *, k: float = 60.0, weights: Sequence[float] | None = None, top_n: int | None = None
) -> list[Passage]:
    """Merge rankings of passages by reciprocal rank fusion (Cormack et al. 2009).

    A passage gets ``sum over rankings of weight / (k + its rank)``, ranks from 1. A ranking without it adds nothing.

    Args:
        rankings: at least one list of passages, best first, each as `rerank` takes it or as it returns it. Passages
            with ids are the same if their ids are equal, those without if title and text are. In a ranking that has a
            passage twice, its first place counts.
        k: constant of the method, above 0; the larger, the less the first places count.
        weights: a weight of at least 0 for each ranking; None gives all of them 1.
        top_n: return at most this many passages; None returns all.

    Returns:
        Every passage once, by falling score; ties keep the order in which the rankings name them. `Passage.score` is
        the fused score, all else is as the first ranking that has the passage gives it.

    Raises:
        InputError: if there is no ranking, an item has no text, or `k`, a weight or `top_n` is out of range.
    """
    check_number("k", k, above=0)
    check_int("top_n", top_n, optional=True)
    lists = [
        ranking.passages if isinstance(ranking, Reranked) else as_passages(ranking, name=f"rankings[{number}]")
        for number, ranking in enumerate(rankings)
    ]
    expect(bool(lists), "rankings", "at least one list of passages", lists)
    if weights is None:
        weights = [1.0] * len(lists)
    expect(len(weights) == len(lists), "weights", f"one for each of {len(lists)} rankings", weights)
    for number, weight in enumerate(weights):
        check_number(f"weights[{number}]", weight, minimum=0)
    return merged(lists, k=k, weights=weights)[:top_n]
