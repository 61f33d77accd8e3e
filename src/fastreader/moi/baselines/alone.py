"""Baselines that read each passage alone: query likelihood (QG), Bayes saliency, LongLLMLingua."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages

if TYPE_CHECKING:
    from fastreader.core.protocol import Scorer
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.results import PermutationScores


def qg(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Query likelihood: ``u_p = log P(q | p)`` (Sachan et al. 2022, "QG" in MoI), nats."""
    scores = _alone(reader, question, passages, template, max_batch_tokens)
    return by_score("qg", scores.question_logprobs, scores.stats)


def bayes_saliency(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """``u_p = log P(q | p) + log P(p)`` (MoI, equation 1; Merth et al. 2024), nats.

    P(p) is the passage's likelihood after the prompt's header, a sum over its tokens: a short passage is likelier.
    """
    scores = _alone(reader, question, passages, template, max_batch_tokens, score_passages=True)
    assert scores.passages_logprobs is not None
    return by_score("bayes-saliency", scores.question_logprobs + scores.passages_logprobs, scores.stats)


def long_llm_lingua(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """``u_p = sum_l P(q_l | p, q_<l) log P(q_l | p, q_<l)``, as MoI's appendix C prints LongLLMLingua's score.

    Larger is taken as better, as for all scores. Whether that is meant is doubtful: x log x is 0 both at x = 1 and
    at x = 0, with its least value at x = 1/e, so a question whose tokens are all but impossible after a passage
    scores as well as one whose tokens are certain, and below 1/e, where most question tokens lie, the score falls
    as their probability rises.
    """
    scores = _alone(reader, question, passages, template, max_batch_tokens, token_logprobs=True)
    assert scores.token_logprobs is not None
    values = [printed_score(tokens) for tokens in scores.token_logprobs.question]
    return by_score("longllmlingua", values, scores.stats)


def printed_score(token_logprobs: Sequence[float]) -> float:
    """``sum_l exp(x_l) x_l`` of a question's token log-probabilities."""
    logs = np.asarray(token_logprobs, dtype=np.float64)
    return float((np.exp(logs) * logs).sum())


def _alone(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    template: Template | None,
    max_batch_tokens: int | None,
    *,
    score_passages: bool = False,
    token_logprobs: bool = False,
) -> PermutationScores:
    """The question after each passage alone, all in one pass."""
    from fastreader.scoring.api import score_permutations

    return score_permutations(
        reader,
        question,
        passages,
        permutations=np.arange(check_passages(passages))[:, None],
        template=template,
        question_only=True,
        score_passages=score_passages,
        token_logprobs=token_logprobs,
        max_batch_tokens=max_batch_tokens,
    )
