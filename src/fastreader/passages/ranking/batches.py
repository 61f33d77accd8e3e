"""rerank_many: the rankings of a batch, with errors that name their question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
    """Yield the rankings of questions that are scored together; if that fails, of each by itself.

    Args:
        reader: as for `rerank`.
        examples: the questions.
        on_error: called for a question that cannot be ranked, which is then left out; by default the error is raised.
        **options: further arguments of `rerank`.

    Raises:
        InputError, NumericsError, OutOfBudgetError: as `rerank`, with the question's id.
    """
    try:
        yield from rerank(reader, examples, **options)
        return
    except (InputError, NumericsError, OutOfBudgetError) as error:
        failed: FastreaderError = error
    for example in examples:
        try:
            yield from rerank(reader, [example], **options)
        except (InputError, NumericsError, OutOfBudgetError) as error:
            located = type(error)(f"id {example.id}: {error}")
            if on_error is None:
                raise located from failed
            on_error(example, located)
