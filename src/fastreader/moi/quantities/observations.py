"""Observations: one question's scores under many orderings, and the arrays that MoI's types hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_choice, check_int, expect, given, rejecting, require, shown
from fastreader.scoring.results import PermutationScores

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KINDS = ("question", "joint", "candidate")


@checked_methods
@dataclass(frozen=True, eq=False)
class Observations:
    """One question's scores under M orderings, as MoI's model explains them.

    Attributes:
        values: float64 [M], nats: s_i of ordering i.
        permutations: int64 [M, L], row i lists passage indices in reading order.
        passages: number of passages N of the question; L <= N.
        kind: what was scored: "question" (log P(q | pi)), "joint" (log P(q | pi) + log P(pi)) or "candidate"
            (a candidate answer's log-likelihood).
        per_token: whether `values` are divided by the number of tokens scored.
        qg: float64 [N], the question's log-likelihood after each passage alone (query likelihood), in the unit of
            a question's `values`; None if it was not scored.
        reader: the scoring reader, as `Reader.describe` returns it.
        template: digest of the prompt's texts (`prompts.Template.digest`); "" if unknown.
        id: the question's identifier.
        truncated: number of tokens cut off each passage to fit the context; uncut passages are absent.

    Raises:
        InputError: if shapes do not fit, a value is not finite, or a row is not an ordering of passages.
    """

    values: FloatArray
    permutations: IntArray
    passages: int
    kind: str = "question"
    per_token: bool = False
    qg: FloatArray | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    id: str | None = None
    truncated: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("Observations.kind", self.kind, KINDS)
        check_int("Observations.passages", self.passages)
        rows, name = np.asarray(self.permutations), "Observations.permutations"
        integers = rows.ndim == 2 and rows.dtype.kind in "iu" and rows.size > 0
        expect(integers, name, "integers [M, L]", f"{rows.dtype} {rows.shape}")
        ordered = np.sort(rows, axis=1)
        distinct = ordered[:, 0].min() >= 0 and ordered[:, -1].max() < self.passages and np.diff(ordered, axis=1).all()
        expect(bool(distinct), name, f"each row to list distinct passages in [0, {self.passages})", rows.tolist())
        object.__setattr__(self, "permutations", rows.astype(np.int64))
        object.__setattr__(self, "values", finite("Observations.values", self.values, (len(rows),)))
        if self.qg is not None:
            object.__setattr__(self, "qg", finite("Observations.qg", self.qg, (self.passages,)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def length(self) -> int:
        """Number of places L of each ordering."""
        return int(self.permutations.shape[1])

    @property
    def rounding(self) -> float:
        """The difference between scores, in nats, below which only rounding shows."""
        return 1e-9 * max(1.0, float(np.abs(self.values).max()))

    @property
    def constant(self) -> bool:
        """Whether all orderings scored the same but for rounding, which says nothing about the passages."""
        return float(np.ptp(self.values)) <= self.rounding


Scored = PermutationScores | Observations


@checked
def observe(
    scores: Scored,
    kind: str = "question",
    *,
    per_token: bool = False,
    candidate: int | str | None = None,
    passages: int | None = None,
) -> Observations:
    """Return the observations of one question's scores.

    Args:
        scores: of one question; `Observations` of the same `kind` and `per_token` are returned as they are.
        kind: "question": log P(q | pi), the default. "joint": log P(q | pi) + log P(pi), as the paper prints it;
            needs ``score_passages=True`` when scoring. "candidate": a candidate's log-likelihood.
        per_token: divide by the number of tokens scored.
        candidate: index or text of the candidate; for kind "candidate" only, if there are several.
        passages: N. None takes it from the scores, which show it if each passage was scored alone or the orderings
            are whole; prefixes do not show it.

    Raises:
        InputError: if `kind` is unknown; if `candidate` is missing, absent or goes with another kind; if the passages
            were not scored; if N is missing or contradicts the scores.
    """
    check_choice("kind", kind, KINDS)
    if isinstance(scores, Observations):
        same = (scores.kind, scores.per_token) == (kind, per_token)
        got = f"{scores.kind!r}, per_token={scores.per_token}"
        require(same, f"observe: expected observations of kind {kind!r}, per_token={per_token}, got {got}")
        return scores
    known = isinstance(scores, PermutationScores)
    expect(known, "observe", "PermutationScores or Observations", scores)
    if kind != "candidate":
        expect(candidate is None, "candidate", f"None with kind={kind!r}", candidate)
    values, qg = scores.question_logprobs, scores.query_logprobs
    tokens: IntArray | int = scores.question_tokens
    if kind == "joint":
        values, tokens = joint_logprobs(scores), tokens + scores.passages_tokens
    elif kind == "candidate":
        k = _candidate(scores.candidates, candidate)
        values, tokens = scores.logprobs[:, k], scores.candidate_tokens[k]
    if per_token:
        values = values / tokens
        qg = None if qg is None else qg / scores.question_tokens
    return Observations(
        values=values,
        permutations=scores.permutations,
        passages=_passages(scores, passages),
        kind=kind,
        per_token=per_token,
        qg=qg,
        reader=scores.reader,
        template=scores.template_digest,
        id=scores.id,
        truncated=scores.truncated_tokens,
    )


def joint_logprobs(scores: PermutationScores) -> FloatArray:
    """Return ``log P(q | pi) + log P(pi)`` of each ordering: float64 [M], nats.

    Raises:
        InputError: if the passages were not scored.
    """
    missing = "'joint' needs the passages' log-likelihood; score with score_passages=True"
    return scores.question_logprobs + given(scores.passages_logprobs, missing)


def _candidate(scored: list[str], candidate: int | str | None) -> int:
    if candidate is None:
        expect(len(scored) == 1, "candidate", f"an index or text, since {len(scored)} were scored", candidate)
        return 0
    if isinstance(candidate, str):
        expect(candidate in scored, "candidate", f"one of those scored, {scored}", candidate)
        return scored.index(candidate)
    expect(0 <= candidate < len(scored), "candidate", f"an index in [0, {len(scored)})", candidate)
    return candidate


def passages_of(scores: PermutationScores) -> int | None:
    """Return N if the scores show it: from the passages scored alone, else from whole orderings."""
    if scores.query_logprobs is not None:
        return len(scores.query_logprobs)
    highest = int(scores.permutations.max()) + 1
    return highest if highest == scores.permutations.shape[1] else None


def _passages(scores: PermutationScores, passages: int | None) -> int:
    known = passages_of(scores)
    if passages is not None and scores.query_logprobs is None:  # orderings of 0..L-1 may be prefixes of more passages
        least = int(scores.permutations.max()) + 1
        expect(passages >= least, "passages", f"at least {least}, as in the scores", passages)
        return passages
    require(
        known is not None,
        f"passages: orderings of {scores.permutations.shape[1]} places do not show the number of passages; give "
        "observe(passages=N), or score with query_likelihood=True",
    )
    assert known is not None
    expect(passages in (None, known), "passages", f"{known}, as in the scores", passages)
    return known


def finite(name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
    """Return a read-only float64 copy.

    Raises:
        InputError: if `value` has another shape, or holds a number that is not finite.
    """
    with rejecting(f"{name}: expected numbers, got {shown(value)}", TypeError, ValueError, OverflowError, RuntimeError):
        array = np.array(value, dtype=np.float64)
    expect(array.shape == shape, name, f"shape {list(shape)}", list(array.shape))
    for place in np.argwhere(~np.isfinite(array)):
        expect(False, f"{name}{place.tolist()}", "a finite number", float(array[tuple(place)]))
    array.setflags(write=False)
    return array
