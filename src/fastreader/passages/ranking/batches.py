"""rerank_many: the rankings of a batch, with errors that name their question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastreader.core.halving import by_halves
from fastreader.data import Example
from fastreader.errors import FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.passages.ranking.rerank import ReaderLike, rerank
from fastreader.passages.ranking.results import Reranked


def rerank_many(
    reader: ReaderLike,
    examples: Sequence[Example],
    *,
    on_error: Callable[[Example, FastreaderError], None] | None = None,
    **options: Any,
) -> Iterator[Reranked]:
    """Yield the rankings of questions that are scored together, or by halves if that fails.

    Args:
        reader: see `rerank`.
        examples: the questions.
        on_error: called for a question that cannot be ranked, which is then left out; by default the error is raised.
        **options: further arguments of `rerank`.

    Raises:
        InputError, NumericsError, OutOfBudgetError: as `rerank`, with the question's id.
    """

    def ranked(part: Sequence[Example]) -> list[Reranked]:
        return rerank(reader, part, **options)

    rankings = by_halves(examples, ranked, (InputError, NumericsError, OutOfBudgetError))
    for example, found in zip(examples, rankings, strict=True):
        if isinstance(found, Reranked):
            yield found
            continue
        located = type(found)(f"id {example.id}: {found}")
        if on_error is None:
            raise located from found
        on_error(example, located)
