"""The model behind `conflicts`: how probable each candidate and each contradiction is, given the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
READING, TEXT = 4.0, 10.0  # nats at which a reading's and a text's lead are clipped


class Weights(NamedTuple):
    """Parameters of the model, in nats.

    Attributes:
        statement: for a candidate that the passage states.
        denial: for a candidate that the passage denies.
        reading: per nat by which the passage's reading prefers a candidate.
        silent: for a passage that says nothing about the question.
        about: taken from `silent` for the passage that has most of the question's words.
        text: per nat by which the passage's text prefers another candidate to its claim.
        altered: log-odds that a passage says something false.
        unstated: for a candidate that is right though no passage states it.
    """

    statement: float
    denial: float
    reading: float
    silent: float
    about: float
    text: float
    altered: float
    unstated: float


# Fitted by studies/conflicts.py on made questions.
WEIGHTS = Weights(
    statement=5.133, denial=6.473, reading=0.038, silent=6.144, about=5.497, text=0.135, altered=-1.833, unstated=-3.2
)


class Evidence(NamedTuple):
    """What N passages say of K candidates. All arrays may have further axes before, one question each.

    Attributes:
        stated: float64 [N, K], strength of the statement, 0 to 1.
        denied: bool [N, K].
        about: float64 [N], share of the question's words in the passage.
        ratios: float64 [N, K], log P(candidate | passage) - log P(candidate), nats.
        texts: float64 [N, K], log-likelihood of the text with a candidate instead of its claim, less the one with its
            claim; NaN where not scored.
        claims: int64 [N], the candidate that a text states, -1 if it states no candidate.
    """

    stated: FloatArray
    denied: BoolArray
    about: FloatArray
    ratios: FloatArray
    texts: FloatArray
    claims: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Verdict:
    """Conclusions from the evidence, with attributes as in `Conflicts`."""

    supports: list[int | None]
    consensus: int | None
    probabilities: FloatArray
    odd_scores: FloatArray
    probability: float


def judge(evidence: Evidence, weights: Weights = WEIGHTS) -> Verdict:
    """Judge which candidate is right and which passages contradict it.

    Without two candidates, or without a statement or a denial in any passage, nothing is contradicted: all candidates
    are equally probable, and the probability of a contradiction is given as 0.

    Args:
        evidence: of N >= 1 passages and K >= 0 candidates.
        weights: of the model.
    """
    count, size = evidence.ratios.shape
    supports = [int(row.argmax()) if row.max(initial=0.0) > 0 else None for row in evidence.ratios]
    any_said = bool(evidence.stated.any() or evidence.denied.any())
    if size < 2 or not any_said:
        only = 0 if evidence.stated.any() else None
        return Verdict(supports, only, np.full(size, 1 / max(size, 1)), np.zeros(count), 0.0)
    right, odd, probability = posterior(evidence, weights)
    return Verdict(supports, int(right.argmax()), right, odd, float(probability))


def posterior(evidence: Evidence, weights: Weights) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return P(candidate is right) [..., K], P(passage contradicts it) [..., N], and P(any passage does) [...]."""
    prior, consistent, false = potentials(evidence, weights)
    either = np.logaddexp(consistent, false)  # of passage i, if candidate t is right
    joint = prior + either.sum(axis=-2)
    right = np.exp(joint - np.logaddexp.reduce(joint, axis=-1)[..., None])
    odd = (np.exp(false - either) * right[..., None, :]).sum(axis=-1)
    none = (right * np.exp((consistent - either).sum(axis=-2))).sum(axis=-1)
    return right, odd, np.clip(1 - none, 0, 1)


def potentials(evidence: Evidence, weights: Weights) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the log-potentials of the model.

    The right candidate t has a prior that is uniform over the candidates that a passage states or denies; all others
    share the prior of one, so that further candidates change little. To one that no passage states ``unstated`` is
    added, since passages that were retrieved for a question rarely all miss its answer. Given t, passages are
    independent. Each one is silent, asserts a candidate, or denies one. With s the statements, l the leads of the
    readings, clipped, and r the texts' leads, clipped, the log-potentials are

    - ``silent - about * sqrt(a)`` for saying nothing, where a is the passage's share of the question's words, relative
      to the largest share; 1 for all if no passage has any,
    - ``statement * s_k + reading * l_k`` for asserting k, and ``altered + text * r_t`` more if k is not t; the
      candidates that no passage mentions have the mean of their potentials together,
    - ``denial`` for denying k, and ``altered`` more if k is t.

    Returns:
        log prior of each candidate, float64 [K]; and for each passage and right candidate, float64 [N, K], the
        log-potential of saying nothing false, and of saying something false.
    """
    stated, denied, ratios = evidence.stated, evidence.denied, evidence.ratios
    size = ratios.shape[-1]
    columns = np.arange(size)
    mentioned = (stated > 0).any(axis=-2) | denied.any(axis=-2)
    rest = size - mentioned.sum(axis=-1, keepdims=True)
    shares = size - rest + (rest > 0)
    prior = -np.log(np.where(mentioned, shares, shares * np.maximum(rest, 1)))
    prior = prior + np.where((stated > 0).any(axis=-2), 0.0, weights.unstated)
    leads = np.clip(ratios - others(ratios), -READING, READING)
    asserts = weights.statement * stated + weights.reading * leads
    denies = np.where(denied, weights.denial, -np.inf)
    most = evidence.about.max(axis=-1, keepdims=True)
    relative = np.where(most > 0, evidence.about / np.where(most > 0, most, 1.0), 1.0)
    silent = weights.silent - weights.about * np.sqrt(relative)
    texts = weights.text * np.clip(np.where(np.isnan(evidence.texts), 0.0, evidence.texts), -TEXT, TEXT)
    claimed = evidence.claims[..., None] == columns
    consistent, false = np.empty(ratios.shape), np.empty(ratios.shape)
    for t in range(size):
        unknown = ~mentioned & (columns != t)
        spread = np.log(np.maximum(unknown.sum(axis=-1, keepdims=True), 1)) * unknown
        wrong = asserts + texts[..., t, None] * claimed - spread[..., None, :]
        wrong[..., t] = denies[..., t]
        right = np.where(columns == t, asserts, denies)
        consistent[..., t] = np.logaddexp(silent, np.logaddexp.reduce(right, axis=-1))
        false[..., t] = weights.altered + np.logaddexp.reduce(wrong, axis=-1)
    return prior, consistent, false


def others(values: FloatArray) -> FloatArray:
    """Return for each element the largest of the others in its row: float64 [..., K], K >= 2."""
    top = np.sort(values, axis=-1)[..., -2:]
    first = values == top[..., 1:]
    return np.where(first, top[..., :1], top[..., 1:])
