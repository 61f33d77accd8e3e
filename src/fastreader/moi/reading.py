"""The prompts that ask for an answer after the passages in given orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fastreader.data.types import Passage

if TYPE_CHECKING:
    from fastreader.prompts import Template
    from fastreader.reader import Reader


def reading_prompts(
    reader: Reader,
    question: str,
    passages: Sequence[Passage],
    orders: Iterable[Sequence[int]],
    template: Template | None = None,
) -> list[list[int]]:
    """Token ids for each order, up to where the answer starts: the contexts that `score_permutations` scores after."""
    from fastreader.prompts import Template, encode

    pieces = encode(reader.encoder, template or Template(), question, passages, [])
    tail = pieces.tail()
    return [pieces.head + pieces.body(order) + tail for order in orders]
