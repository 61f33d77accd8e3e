"""Any scores placed by a calibrated position bias: the largest score at the place of the largest weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.moi.baselines.ordering import FloatArray, Ordering, by_score, check_passages
from fastreader.moi.identity import differing
from fastreader.moi.order import matched
from fastreader.moi.types import PositionBias, check_position_bias


def score_matched(scores: npt.ArrayLike, bias: PositionBias) -> list[int]:
    """The order that maximises ``sum_j bias[j] scores[order[j]]`` (rearrangement inequality).

    Args:
        scores: float [N], larger is better, of whatever unit: only their order counts.
        bias: of N passages, its sign decided: scores from outside do not turn with it as utilities do.

    Raises:
        InputError: scores that are not finite [N], or a bias of another N or of undetermined sign.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise InputError(f"scores: expected finite numbers [N], got {scores!r}")
    return [int(p) for p in matched(values, outside_bias(bias, len(values)))]


def outside_bias(bias: PositionBias, passages: int) -> FloatArray:
    """The weights [L] of a bias that may place scores which were not measured with it.

    Raises:
        InputError: it is none, of another number of passages, or its sign is undetermined.
    """
    check_position_bias(bias)
    if bias.num_passages != passages:
        raise InputError(f"bias: measured with N = {bias.num_passages} passages, got {passages}")
    if bias.sign == "undetermined":
        raise InputError("bias: its sign is undetermined, so it says nothing of where to put a passage known as good")
    return bias.bias


def check_own(bias: PositionBias, reader: Any) -> None:
    """Refuse a bias of another reader than the one that is given; None is no reader.

    Raises:
        InputError: naming both.
    """
    about = {} if reader is None else reader.describe()
    if wrong := differing("bias", bias.reader, "", "reader", about, ""):
        raise InputError(f"bias: measured on another reader: {'; '.join(wrong)}")


def placed(ranker: Callable[..., Ordering]) -> Callable[..., Ordering]:
    """The same ranker, its scores placed by a bias: adds the keyword `bias` and "-matched" to the name.

    The bias is the reader's own, which will read the order; `score_matched` places scores for another one.
    """

    def ranked(
        reader: Any, question: str, passages: Sequence[Passage], *, bias: PositionBias, **settings: Any
    ) -> Ordering:
        outside_bias(bias, check_passages(passages))  # before the work
        check_own(bias, reader)
        found = ranker(reader, question, passages, **settings)
        if found.scores is None:
            raise InputError(f"{found.name}: gives an order and no scores to place")
        return replace(found, order=score_matched(found.scores, bias), name=f"{found.name}-matched")

    ranked.__doc__ = f"`{ranker.__name__}`, its scores placed by the calibrated bias."
    return ranked


def retriever_scores(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """The passages by the retriever's own scores (BM25's, say).

    Raises:
        InputError: a passage without a score.
    """
    check_passages(passages)
    scores = [passage.score for passage in passages]
    if None in scores:
        raise InputError(f"passages[{scores.index(None)}]: has no retriever's score")
    return by_score("bm25", np.array(scores, dtype=np.float64))
