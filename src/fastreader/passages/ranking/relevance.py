"""Rank passages by a model that was trained to score a query with a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.core.checks import expect
from fastreader.core.protocol import ScoringReader
from fastreader.data.types import Example, whole_text
from fastreader.moi.baselines.ordering import NOTHING_READ
from fastreader.passages.ranking.results import Reranked, by_value, readable
from fastreader.scoring.labels import tokens_of

RELEVANCE = "relevance"


def by_relevance(reader: ScoringReader, questions: Sequence[Example], **options: Any) -> list[Reranked]:
    """Rank the passages of questions by the model's score of each, all in one call.

    Args:
        reader: a relevance model's, or a session of it.
        questions: with their passages; a title and its text are two lines.
        options: `instruction`, `on_overflow` and `max_batch_tokens`, see `Reader.relevance_scores`.

    Raises:
        InputError: if the reader's model is not one for relevance.
    """
    expected = "a reader of a relevance model; others rank by method='yes_no'"
    model: Any = reader
    expect(getattr(reader, "is_reranker", False), "reader", expected, reader.name)
    kept = [readable(example) for example in questions]
    pairs = [
        (example.question, whole_text(example.passages[i]))
        for example, places in zip(questions, kept, strict=True)
        for i in places
    ]
    found, start, rankings = model.relevance_scores(pairs, **options), 0, []
    for example, places in zip(questions, kept, strict=True):
        end = start + len(places)
        alone = len(places) == len(pairs)
        stats = found.stats if alone else NOTHING_READ
        if places and not alone:
            own_pairs: list[tuple[list[int], list[int]]] = [(tokens, []) for tokens in found.prompts[start:end]]
            stats = tokens_of(reader, own_pairs, options.get("max_batch_tokens"))
        own = found.logits[start:end]
        rankings.append(by_value(example, places, own, found.truncated[start:end], RELEVANCE, stats))
        start = end
    return rankings
