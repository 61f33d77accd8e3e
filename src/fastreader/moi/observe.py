"""Observations from permutation scores."""

from __future__ import annotations

import numpy as np

from fastreader.errors import InputError
from fastreader.moi.types import KINDS, FloatArray, Observations
from fastreader.scoring.results import PermutationScores

Scored = PermutationScores | Observations


def observe(
    scores: Scored,
    kind: str = "question",
    *,
    per_token: bool = False,
    candidate: int | str | None = None,
    passages: int | None = None,
) -> Observations:
    """What MoI explains of one question's scores.

    Args:
        scores: of one question; `Observations` are given back as they are where `kind` and `per_token` agree.
        kind: "question": log P(q | pi), the default. "joint": log P(q | pi) + log P(pi), as the paper prints it;
            needs ``score_passages=True`` when scoring. "candidate": a candidate's log-likelihood.
        per_token: divide by the tokens scored.
        candidate: which candidate, by its place or text; for kind "candidate" only, where there are several.
        passages: N. Scores tell it themselves where each passage was scored alone or orderings are whole ones;
            prefixes do not.

    Raises:
        InputError: an unknown kind; a candidate where none is taken, or missing, or absent; passages that were not
            scored; N missing, or another than the scores tell.
    """
    if kind not in KINDS:
        raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if isinstance(scores, Observations):
        if (scores.kind, scores.per_token) != (kind, per_token):
            raise InputError(
                f"observe: expected observations of kind {kind!r}, per_token={per_token}, got {scores.kind!r}, "
                f"per_token={scores.per_token}"
            )
        return scores
    if not isinstance(scores, PermutationScores):
        raise InputError(f"observe: expected PermutationScores or Observations, got {type(scores).__name__}")
    if candidate is not None and kind != "candidate":
        raise InputError(f"candidate: goes with kind='candidate', got kind={kind!r}")
    values, tokens = _values(scores, kind, candidate)
    qg = scores.query_logprobs
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


def _values(scores: PermutationScores, kind: str, candidate: int | str | None) -> tuple[FloatArray, FloatArray]:
    """Scores [M] and how many tokens each is the sum of [M]."""
    rows = len(scores.permutations)
    question = np.full(rows, float(scores.question_tokens))
    if kind == "question":
        return scores.question_logprobs, question
    if kind == "joint":
        return joint_loglik(scores), question + scores.passages_tokens
    k = _candidate(scores, candidate)
    return scores.logprobs[:, k], np.full(rows, float(scores.candidate_tokens[k]))


def joint_loglik(scores: PermutationScores) -> FloatArray:
    """``log P(q | pi) + log P(pi)`` of each ordering: float64 [M], nats.

    Raises:
        InputError: the passages were not scored.
    """
    if scores.passages_logprobs is None:
        raise InputError("'joint' needs the passages' log-likelihood; score with score_passages=True")
    return scores.question_logprobs + scores.passages_logprobs


def _candidate(scores: PermutationScores, candidate: int | str | None) -> int:
    count = len(scores.candidates)
    if candidate is None:
        if count != 1:
            raise InputError(f"kind 'candidate': say which candidate, there are {count}")
        return 0
    if isinstance(candidate, str):
        if candidate not in scores.candidates:
            raise InputError(f"candidate: {candidate!r} was not scored; those are {scores.candidates}")
        return scores.candidates.index(candidate)
    if not 0 <= candidate < count:
        raise InputError(f"candidate: expected a number in [0, {count}), got {candidate}")
    return candidate


def passages_of(scores: PermutationScores) -> int | None:
    """N, where the scores tell: of the passages alone where those were scored, else of whole orderings."""
    if scores.query_logprobs is not None:
        return len(scores.query_logprobs)
    highest = int(scores.permutations.max()) + 1
    return highest if highest == scores.permutations.shape[1] else None


def _passages(scores: PermutationScores, given: int | None) -> int:
    known = passages_of(scores)
    least = int(scores.permutations.max()) + 1
    if given is not None and scores.query_logprobs is None:  # orderings of 0..L-1 may be prefixes of more passages
        if given < least:
            raise InputError(f"passages: expected at least {least}, as in the scores, got {given}")
        return given
    if known is None:
        raise InputError(
            f"passages: orderings of {scores.permutations.shape[1]} places do not tell of how many passages they are; "
            "give observe(passages=N), or score with query_likelihood=True"
        )
    if given not in (None, known):
        raise InputError(f"passages: expected {known}, as in the scores, got {given}")
    return known
