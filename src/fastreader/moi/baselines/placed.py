"""Scores placed by a calibrated position bias: the largest score at the place of the largest weight."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import expect, given, require
from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import Ordering, check_passages
from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.quantities.position_bias import PositionBias, differing
from fastreader.moi.quantities.utilities import matched


@checked
def score_matched(scores: npt.ArrayLike, bias: PositionBias) -> list[int]:
    """Return the order that maximises ``sum_j bias[j] scores[order[j]]`` (rearrangement inequality).

    Args:
        scores: float [N], larger is better, in any unit: only their order counts.
        bias: a calibration for N passages whose sign is decided, since scores from outside do not turn with the sign
            as utilities do.

    Raises:
        InputError: if `scores` are not finite [N], or the bias is for another N or has an undetermined sign.
    """
    values = np.asarray(scores, dtype=np.float64)
    finite = values.ndim == 1 and values.size > 0 and bool(np.isfinite(values).all())
    expect(finite, "scores", "finite numbers [N]", scores)
    order: list[int] = matched(values, outside_bias(bias, len(values))).tolist()
    return order


@checked
def outside_bias(bias: PositionBias, passages: int) -> FloatArray:
    """Return the weights [L] of a bias that may place scores which were not measured with it.

    Raises:
        InputError: if `bias` is not a PositionBias, is for another number of passages, or has an undetermined sign.
    """
    expect(bias.num_passages == passages, "bias", f"a calibration with N = {passages} passages", bias.num_passages)
    known = bias.sign != "undetermined"
    require(known, "bias: its sign is undetermined, so it does not tell where to place a good passage")
    return bias.bias


def check_own(bias: PositionBias, reader: Any) -> None:
    """Check that a bias was measured on `reader`, unless that is None."""
    wrong = differing("bias", bias.reader, "", "reader", {} if reader is None else reader.describe(), "")
    require(not wrong, f"bias: measured on another reader: {'; '.join(wrong)}")


def placed(ranker: Callable[..., Ordering]) -> Callable[..., Ordering]:
    """Return a ranker whose scores are placed by its keyword `bias`, with "-matched" added to its name.

    The bias must belong to the reader that will read the order; `score_matched` places scores for another reader.
    """

    @functools.wraps(ranker)
    def ranked(
        reader: Any, question: str, passages: Sequence[Passage], *, bias: PositionBias, **settings: Any
    ) -> Ordering:
        outside_bias(bias, check_passages(passages))  # before the work
        check_own(bias, reader)
        found = ranker(reader, question, passages, **settings)
        scores = given(found.scores, f"{found.name}: has no scores to place")
        return replace(found, order=score_matched(scores, bias), name=f"{found.name}-matched")

    ranked.__doc__ = f"Place the scores of `{ranker.__name__}` by the calibrated bias."
    return ranked
