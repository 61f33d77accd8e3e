"""Settle a reader's bias from questions without labels: look after every few, and say what is still open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastreader.core.checks import random_generator
from fastreader.moi.calibration.calibrate import calibrate
from fastreader.moi.quantities.observations import FloatArray, Observations
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.solve.evidence import ModelEvidence, evidence
from fastreader.moi.solve.likelihood import pool

LEAST = 20  # questions before the first look
CHANCE = 1e-4  # significance level of each interim look: the chance of reporting a bias without one
SURE = 0.95  # wanted probability that the best place is the best, or nearly
NEARLY = 0.1  # of the distance between best and worst place: places nearer to the best count as the best
_AGREES = 0.8  # least share of the evidence that the fitted bias explains
_GROWTH = 1.25  # questions at a look against those at the one before: looks must be few to keep CHANCE
_DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Look:
    """What some questions show.

    Attributes:
        settled: whether the best place and the bias's sign are settled.
        bias: the calibration; None if there is no evidence of a bias so far.
        why: what is still open; empty if settled.
    """

    settled: bool
    bias: PositionBias | None
    why: str


def is_look(count: int, least: int = LEAST) -> bool:
    """Return whether to look after this number of questions: `least`, then 1.25 times as many as at the look before.

    >>> [count for count in range(120) if is_look(count)]
    [20, 25, 31, 39, 49, 61, 76, 95, 119]
    """
    due = float(least)
    while round(due) < count:
        due = max(due * _GROWTH, round(due) + 1)
    return round(due) == count


def look(observed: Sequence[Observations], seed: int = 0) -> Look:
    """Look at the scores of some questions, of Latin squares with query likelihoods.

    Args:
        observed: of one reader, template and N.
        seed: of the calibration.
    """
    found = evidence(pool(observed))
    if found.chance >= CHANCE:
        return Look(False, None, _no_bias(len(observed), found))
    bias = calibrate(observed, seed=seed)
    if found.share(bias.bias) < _AGREES:
        why = "the fitted bias and the query likelihoods by place do not agree"
        return Look(False, replace(bias, sign="undetermined", reason=why), why)
    bias = replace(bias, sign="query_likelihood", flat=False, identified=True, reason="")
    best = int(bias.bias.argmax())
    sure = chance_of_best(bias.bias, bias.covariance)
    if sure < SURE:
        why = f"place {best + 1} is the best with a probability of {sure:.2f}, and {SURE} is wanted"
        return Look(False, replace(bias, reason=why), why)
    return Look(True, bias, "")


def undecidable(observed: Sequence[Observations], seed: int = 0) -> PositionBias:
    """Return the calibration of scores that settle nothing, with the `reason`, `flat` if no bias shows."""
    last = look(observed, seed)
    if last.bias is not None:
        return last.bias
    return replace(calibrate(observed, seed=seed), flat=True, sign="undetermined", reason=last.why)


def chance_of_best(bias: FloatArray, covariance: FloatArray) -> float:
    """Return the probability that no place is better than the best one found, by more than `NEARLY`."""
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(bias)))
    drawn = bias + random_generator(0).standard_normal((_DRAWS, len(bias))) @ root.T
    short = drawn.max(axis=1) - drawn[:, int(bias.argmax())]
    return float(np.mean(short <= NEARLY * np.ptp(drawn, axis=1)))


def _no_bias(questions: int, found: ModelEvidence) -> str:
    return f"{questions} questions show no position bias beyond chance (p = {found.chance:.2g})"
