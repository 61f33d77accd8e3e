"""Cut documents to the paper's lengths (App. C.1), in words between white space."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastreader.core.checked import checked
from fastreader.core.checks import check_int
from fastreader.data.types import Passage


@checked
@dataclass(frozen=True)
class Limits:
    """The paper's limits, in words.

    Attributes:
        page: length of each of the first k documents of a source (``SE@4``), title included.
        single: length of the document of ``@1``, title included.
        chunk: approximate length of the chunks of @RR.
        document: total length of a retriever's passages.
        summary: length of a summary of @CP.
    """

    page: int = 250
    single: int = 1000
    chunk: int = 100
    document: int = 1000
    summary: int = 200

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            check_int(f"Limits.{item.name}", getattr(self, item.name), json_value=True)


def first_words(text: str, count: int) -> str:
    """Return the first `count` words of `text`, or all if it has fewer, with their spacing."""
    parts = text.split(maxsplit=count)
    if len(parts) <= count:
        return text
    return text[: len(text) - len(parts[count])].rstrip()


def cut(passage: Passage, count: int) -> Passage:
    """Return `passage` cut to `count` words, title included, with at least one word of the text."""
    text = first_words(passage.text, max(count - len(passage.title.split()), 1))
    return passage if text == passage.text else replace(passage, text=text)


def chunks(passage: Passage, words: int) -> list[Passage]:
    """Split `passage` into pieces of equal length, near `words` words each, with its title and id.

    The metadata of a piece have its index as "chunk"; a passage that stays whole is returned unchanged.
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
    """Return `passages` up to `count` words in all, cutting the one that crosses the limit and dropping those after it.

    The text of the first passage keeps at least one word, so that something is left.
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
