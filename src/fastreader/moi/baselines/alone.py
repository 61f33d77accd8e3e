"""Baselines that score each passage alone: QG, Bayes saliency, LongLLMLingua, cross-encoder, the retriever's scores.

Those that take `**options` accept `template` and `max_batch_tokens` of `score_permutations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect
from fastreader.data.arguments import make_example
from fastreader.data.types import Passage
from fastreader.errors import MissingExtraError, ModelNotFoundError
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages, show

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.query_likelihood import FloatArray, QueryLikelihoods


@checked
def qg(reader: ScoringReader, question: str, passages: Sequence[Passage], **options: Any) -> Ordering:
    """Score by query likelihood, ``u_p = log P(q | p)`` in nats (Sachan et al. 2022, "QG" in MoI)."""
    scores = _alone(reader, question, passages, **options)
    return by_score("qg", scores.logprobs, scores.stats)


@checked
def bayes_saliency(reader: ScoringReader, question: str, passages: Sequence[Passage], **options: Any) -> Ordering:
    """Score by ``u_p = log P(q | p) + log P(p)`` in nats (MoI, equation 1, by Merth et al. 2024).

    P(p) is the passage's likelihood after the prompt's header, a sum over its tokens: a short passage is likelier.
    """
    scores = _alone(reader, question, passages, score_passages=True, **options)
    assert scores.passages_logprobs is not None
    return by_score("bayes-saliency", scores.logprobs + scores.passages_logprobs, scores.stats)


@checked
def long_llm_lingua(reader: ScoringReader, question: str, passages: Sequence[Passage], **options: Any) -> Ordering:
    """Score by ``u_p = sum_l P(q_l | p, q_<l) log P(q_l | p, q_<l)``, LongLLMLingua as MoI's appendix C prints it.

    Larger is taken as better, as for all scores, although the formula may not mean that: x log x is 0 both at x = 1
    and at x = 0, with its minimum at x = 1/e. A question whose tokens are almost impossible after a passage therefore
    scores as high as one whose tokens are certain, and below 1/e, where most question tokens are, the score falls as
    their probability rises.
    """
    scores = _alone(reader, question, passages, **options)
    return by_score("longllmlingua", [printed_score(tokens) for tokens in scores.token_logprobs], scores.stats)


def printed_score(token_logprobs: Sequence[float] | FloatArray) -> float:
    """Return ``sum_l exp(x_l) x_l`` of a question's token log-probabilities."""
    logs = np.asarray(token_logprobs, dtype=np.float64)
    return float((np.exp(logs) * logs).sum())


def _alone(
    reader: ScoringReader,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    **options: Any,
) -> QueryLikelihoods:
    """Score the question after each passage alone, all in one pass."""
    from fastreader.reader.prompts.template import as_template
    from fastreader.scoring.query_likelihood import query_likelihoods

    check_passages(passages)
    example = make_example(question, passages)
    asked = [(example.question, example.passages, "the question")]
    (scores,) = query_likelihoods(reader, asked, as_template(template), **options)
    return scores


@checked
def cross_encoder(reader: Any, question: str, passages: Sequence[Passage], *, model: Any, batch: int = 32) -> Ordering:
    """Score by a cross-encoder's relevance (sentence-transformers, the extra "cross-encoder").

    Args:
        model: a name or folder for sentence-transformers' ``CrossEncoder``, which stays loaded, or such an object.
        batch: number of pairs in a batch.

    Raises:
        MissingExtraError: if sentence-transformers is not installed.
        InputError: if the model does not return one finite score for each pair.
    """
    count = check_passages(passages)
    encoder = _load(model) if isinstance(model, str) else model
    expect(callable(getattr(encoder, "predict", None)), "model", "a name, or an object with `predict`", model)
    check_int("batch", batch)
    pairs = [(question, show(passage)) for passage in passages]
    scores = np.asarray(encoder.predict(pairs, batch_size=batch, show_progress_bar=False), dtype=np.float64)
    one_each = scores.shape == (count,) and bool(np.isfinite(scores).all())
    expect(one_each, "model", f"one finite score for each of {count} pairs", scores.tolist())
    return by_score("cross-encoder", scores)


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise MissingExtraError("sentence-transformers", "cross-encoder") from error
    try:
        return CrossEncoder(name)
    except (OSError, ValueError) as error:  # transformers raises either
        raise ModelNotFoundError(f"model: {name!r} cannot be loaded ({error})") from error


def retriever_scores(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """Score by the retriever's own scores, such as BM25's.

    Raises:
        InputError: if a passage has no score.
    """
    check_passages(passages)
    scores = [passage.score for passage in passages]
    missing = scores.index(None) if None in scores else 0
    expect(None not in scores, f"passages[{missing}].score", "the retriever's score", None)
    return by_score("bm25", np.array(scores, dtype=np.float64))
