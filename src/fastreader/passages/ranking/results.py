"""Reranked: the passages of a question in order of relevance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fastreader.core.frames import data_frame, listing
from fastreader.core.tree import TreeStats
from fastreader.core.words import counted
from fastreader.data.record import Record
from fastreader.data.types import Example, Passage

FloatArray = npt.NDArray[np.float64]
EMPTY = "no text, so not scored"
_FRAME = ("id", "question", "rank", "index", "passage_id", "title", "text", "relevance", "value", "note")


@dataclass(frozen=True)
class RerankResult(Record):
    """One passage with its relevance.

    Attributes:
        index: its place among the passages given, from 0.
        passage: the passage.
        relevance: in [0, 1], larger is better; `rerank` says what it means for each method.
        value: the score behind it, larger is better, in nats unless the method has its own unit; None if the method
            gave only an order, or did not look at this passage.
        note: a remark on this passage; empty without one.
    """

    index: int
    passage: Passage
    relevance: float
    value: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Reranked:
    """Passages by falling relevance, as a sequence of `RerankResult`s.

    Attributes:
        question: its text.
        results: in order of relevance; passages without text, and those that the method did not look at, come last.
        method: its name.
        stats: tokens of the texts that were scored, and tokens computed for them.
        note: cautions; empty if there is nothing to report.
        id, answers, candidates, metadata: the question's, as in `Example`.
    """

    question: str
    results: list[RerankResult]
    method: str
    stats: TreeStats
    note: str = ""
    id: str | None = None
    answers: list[str] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[RerankResult]:
        return iter(self.results)

    @overload
    def __getitem__(self, place: int) -> RerankResult: ...
    @overload
    def __getitem__(self, place: slice) -> list[RerankResult]: ...
    def __getitem__(self, place: int | slice) -> RerankResult | list[RerankResult]:
        return self.results[place]

    def __repr__(self) -> str:
        """Return the ranking on at most 16 lines, one a passage."""
        head = [
            f"Reranked: {counted(len(self), 'passage')} by {self.method}; "
            f"{self.stats.computed_tokens:,} tokens computed",
            f"question: {self.question}",
            "relevance  index  passage",
        ]
        texts = (f"{result.passage.title} {result.passage.text}".strip() for result in self)
        rows = (f"{r.relevance:9.3f}  {r.index:5}  {text}" for r, text in zip(self, texts, strict=True))
        return listing(head, rows, len(self), self.note)

    @property
    def indices(self) -> list[int]:
        """Indices of the passages given, in order of relevance."""
        return [result.index for result in self.results]

    @property
    def passages(self) -> list[Passage]:
        """The passages, in order of relevance."""
        return [result.passage for result in self.results]

    def to_example(self) -> Example:
        """Return the question with its passages in order of relevance, which becomes their score."""
        passages = [dataclasses.replace(result.passage, score=result.relevance) for result in self.results]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.metadata)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each passage, in order of relevance.

        Its columns: id and question (of the question), rank (from 1), index, passage_id, title, text, relevance, value
        and note. `pandas.concat` joins the frames of several questions.

        Raises:
            MissingExtraError: if pandas is not installed (the extra "pandas").
        """
        rows = [
            {
                "id": self.id,
                "question": self.question,
                "rank": rank,
                "index": result.index,
                "passage_id": result.passage.id,
                "title": result.passage.title,
                "text": result.passage.text,
                "relevance": result.relevance,
                "value": result.value,
                "note": result.note,
            }
            for rank, result in enumerate(self.results, 1)
        ]
        return data_frame(rows, _FRAME)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values, which `load_examples` reads as `to_example` returns them."""
        return {
            "id": self.id,
            "question": self.question,
            "answers": self.answers,
            "candidates": self.candidates,
            "metadata": self.metadata,
            "method": self.method,
            "note": self.note,
            "total_tokens": self.stats.total_tokens,
            "computed_tokens": self.stats.computed_tokens,
            "results": [result.to_dict() for result in self.results],
        }


def readable(example: Example) -> list[int]:
    """Return the places of the passages that have text."""
    return [i for i, passage in enumerate(example.passages) if passage.text.strip() or passage.title.strip()]


def ranking_of(
    example: Example, found: Iterable[RerankResult], method: str, stats: TreeStats, note: str = ""
) -> Reranked:
    """Return a ranking of results in order, followed by the passages without text."""
    results = list(found)
    known = {result.index for result in results}
    for i, passage in enumerate(example.passages):
        if i not in known:
            results.append(RerankResult(i, passage, 0.0, note=EMPTY))
    about = (example.id, example.answers, example.candidates, example.metadata)
    return Reranked(example.question, results, method, stats, note, *about)


def sigmoid(value: float) -> float:
    """Return 1 / (1 + exp(-value)), without overflow."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def by_value(
    example: Example, places: Sequence[int], values: FloatArray, cuts: Sequence[int], method: str, stats: TreeStats
) -> Reranked:
    """Return the ranking of passages by falling value, ties as the retriever has them.

    Args:
        example: the question with its passages.
        places: indices of the passages that were scored.
        values: float64 [n], theirs; more may follow.
        cuts: tokens cut off each of them.
        method: its name.
        stats: tokens.
    """
    results = []
    for i, value, cut in zip(places, values.tolist(), cuts, strict=False):
        note = f"cut by {cut} tokens to fit the model's context" if cut else ""
        results.append(RerankResult(i, example.passages[i], sigmoid(value), value, note))
    results.sort(key=lambda result: -(result.value or 0.0))
    return ranking_of(example, results, method, stats)
