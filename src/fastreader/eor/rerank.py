"""Rank the passages of a question for @RR by a scorer.

A scorer is any ``scorer(question, passages) -> one number per passage``, larger is better. A scorer with ``score_many``
is called once for all questions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_texts, expect
from fastreader.core.protocol import ReaderProtocol
from fastreader.data.types import Passage, whole_text
from fastreader.eor.similarity.loading import encoder_for
from fastreader.eor.texts import Texts

if TYPE_CHECKING:
    from fastreader.models.loading.sentence_encoders import Encoder

Scorer = Callable[[str, Sequence[Passage]], Any]


@checked
class QuestionLikelihood:
    """log P(question | passage) by the reader in nats per token: query generation, as in Sachan et al. (2022).

    All passages of all questions are scored in one packed pass; they share the prompt up to the passage.
    """

    def __init__(self, reader: ReaderProtocol, texts: Texts | None = None) -> None:
        self.reader, self.texts = reader, texts or Texts()

    def __call__(self, question: str, passages: Sequence[Passage]) -> list[float]:
        """Return the scores of one question's passages."""
        return self.score_many([question], [passages])[0]

    def score_many(self, questions: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[list[float]]:
        """Return the scores of each question's passages."""
        check_texts("questions", questions)
        expect(len(passages) == len(questions), "passages", f"{len(questions)} lists, as questions", len(passages))
        texts = self.texts
        requests = [
            (
                self.reader.prompt([texts.rank_lead, texts.of(passage), texts.rank_ask]),
                self.reader.continuation(texts.rank_question.format(question=question.strip())),
            )
            for question, group in zip(questions, passages, strict=True)
            for passage in group
        ]
        found = iter(self.reader.loglikelihood(requests) if requests else ())
        return [
            [score.logprob / max(score.num_tokens, 1) for _, score in zip(group, found, strict=False)]
            for group in passages
        ]


@checked
class Cosine:
    """Cosine similarity of the sentence vectors of question and passage."""

    def __init__(self, encoder: str | os.PathLike[str] | Encoder) -> None:
        self._encode = encoder_for(encoder)

    def __call__(self, question: str, passages: Sequence[Passage]) -> list[float]:
        """Return the scores of one question's passages."""
        vectors = self._encode([question, *map(whole_text, passages)])
        scores: list[float] = (vectors[1:] @ vectors[0]).tolist()
        return scores


def rerank(scorer: Scorer, questions: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[list[Passage]]:
    """Return each question's passages with their scores, best first and ties in their order.

    Raises:
        InputError: if the scorer does not return one finite number per passage.
    """
    if callable(many := getattr(scorer, "score_many", None)):
        scores = many(questions, passages)
    else:
        scores = [scorer(question, group) if group else [] for question, group in zip(questions, passages, strict=True)]
    out = []
    for question, group, values in zip(questions, passages, scores, strict=True):
        array = np.asarray(values, dtype=np.float64)
        ok = array.shape == (len(group),) and bool(np.isfinite(array).all())
        expect(ok, "scorer", f"{len(group)} finite numbers for the passages of {question[:60]!r}", values)
        order = np.argsort(-array, kind="stable")
        out.append([replace(group[i], score=float(array[i])) for i in order.tolist()])
    return out
