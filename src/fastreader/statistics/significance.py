"""Tests on pairs, and Holm's correction for many of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from fastreader.errors import InputError
from fastreader.statistics.checks import binary_pair, differences
from fastreader.statistics.intervals import Values


def mcnemar(a: Values, b: Values) -> float:
    """Two-sided exact p of McNemar's test (1947): the pairs that differ against a fair coin.

    Args:
        a, b: [n] of 0 and 1; a[i] and b[i] belong to the same question.

    Returns:
        p; 1.0 where no pair differs.

    Raises:
        InputError: values other than 0 and 1, none, or lengths that differ.
    """
    first, second = binary_pair("mcnemar", a, b)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


def wilcoxon(a: Values, b: Values) -> float:
    """Two-sided p of Wilcoxon's signed-rank test (1945) on a - b; pairs without a difference are left out, as he did.

    SciPy's, on the pairs that differ: exact up to 50 of them without ties, and with ties up to 13 in recent releases;
    else the normal approximation with its correction for ties. On right and wrong answers all differences tie, and p
    is that of McNemar's test, exact where SciPy's is, else without continuity correction; trust `mcnemar`, which is
    always exact.

    Args:
        a, b: [n] finite numbers; a[i] and b[i] belong to the same question.

    Returns:
        p; 1.0 where no pair differs.

    Raises:
        InputError: no pairs, lengths that differ, or a value that is not finite.
    """
    difference = differences("wilcoxon", a, b)
    difference = difference[difference != 0]
    return float(stats.wilcoxon(difference).pvalue) if len(difference) else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method (1979), in the order given.

    The i-th smallest of m, from 0, is multiplied by m - i; each is at least the one before it and at most 1.

    Raises:
        InputError: a value outside 0..1.
    """
    if odd := [p for p in p_values if not 0 <= p <= 1]:
        raise InputError(f"holm: p values must be in 0..1, got {odd[0]}")
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in corrected]
