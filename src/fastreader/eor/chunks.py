"""Cutting documents to the paper's lengths (App. C.1), counted in words between white space."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastreader.data.types import Passage
from fastreader.errors import InputError


@dataclass(frozen=True)
class Limits:
    """The paper's limits, in words.

    Attributes:
        page: kept of each of the first k documents of a source (``SE@4``), title included.
        single: kept of the document of ``@1``, title included.
        chunk: length to which @RR splits documents, about.
        document: all passages of a retriever together.
        summary: a summary of @CP.
    """

    page: int = 250
    single: int = 1000
    chunk: int = 100
    document: int = 1000
    summary: int = 200

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"Limits.{item.name}: expected a number of words from 1, got {value!r}")


def first_words(text: str, count: int) -> str:
    """The first `count` words of `text` as they stand; all of it where it has no more."""
    parts = text.split(maxsplit=count)
    if len(parts) <= count:
        return text
    return text[: len(text) - len(parts[count])].rstrip()


def cut(passage: Passage, count: int) -> Passage:
    """`passage` cut to `count` words, title included; of the text one word is kept always."""
    text = first_words(passage.text, max(count - len(passage.title.split()), 1))
    return passage if text == passage.text else replace(passage, text=text)


def chunks(passage: Passage, words: int) -> list[Passage]:
    """`passage` in pieces of equal length, near `words` words each; title and identifier stay with each.

    A piece's place goes to its metadata as "chunk"; a passage that stays whole is given back as it is.
    """
    found = passage.text.split()
    count = max(round(len(found) / words), 1)
    if count == 1:
        return [passage]
    edges = [round(i * len(found) / count) for i in range(count + 1)]
    return [
        replace(passage, text=" ".join(found[a:b]), score=None, metadata={**passage.metadata, "chunk": i})
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]


def cut_all(passages: Sequence[Passage], count: int) -> list[Passage]:
    """`passages` up to `count` words in all; the one that crosses the limit is cut, those after it go.

    Of the first passage one word of text is kept always, so that something is left.
    """
    kept: list[Passage] = []
    left = count
    for passage in passages:
        if kept and left <= len(passage.title.split()):
            break
        kept.append(cut(passage, left))
        left -= len(passage.title.split()) + len(passage.text.split())
        if left <= 0:
            break
    return kept
