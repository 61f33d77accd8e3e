"""Define the values passed between stages: retrieved documents, answers and votes, with their JSON forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import accept, checked, checked_methods, kind_of
from fastreader.core.checks import expect
from fastreader.data.record import SavedRecord, rebuilt, values_of
from fastreader.data.types import Passage, whole_text

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_PREDICTIONS = kind_of(Mapping[str, str | None])


@checked
@dataclass(frozen=True)
class Document:
    """The passages of one retriever for one question.

    Attributes:
        retriever: the retriever's specification.
        passages: the passages in reading order; empty for ReFree and after a failure.
        failure: why there is no document; None without a failure.
        notes: what is missing from the document, such as a source that returned nothing.
    """

    retriever: str
    passages: list[Passage] = field(default_factory=list)
    failure: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Titles and texts of the passages, one per line, as the error analysis searches them."""
        return "\n".join(map(whole_text, self.passages))


@checked
@dataclass(frozen=True)
class Retrieval:
    """The documents of M retrievers for one question.

    Attributes:
        question: the text of the question.
        documents: one per retriever.
        right: the right answers; empty if unknown.
        id: the question's identifier.
    """

    question: str
    documents: list[Document]
    right: list[str] = field(default_factory=list)
    id: str | None = None


@checked
@dataclass(frozen=True)
class Answers:
    """The answers of M retrievers to one question.

    Attributes:
        question: the text of the question.
        retrievers: M names.
        texts: M answers; None if the retriever failed.
        failures: the reasons, by retriever.
        documents: the M documents read; empty if not kept.
        right: the right answers; empty if unknown.
        id: the question's identifier.
    """

    question: str
    retrievers: list[str]
    texts: list[str | None]
    failures: dict[str, str] = field(default_factory=dict)
    documents: list[Document] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    id: str | None = None

    def __post_init__(self) -> None:
        count = len(self.retrievers)
        expect(len(self.texts) == count, "Answers: texts", f"one for each of {count} retrievers", len(self.texts))
        expect(len(set(self.retrievers)) == count, "Answers: retrievers", "each retriever once", self.retrievers)
        documents = len(self.documents)
        expect(documents in (0, count), "Answers: documents", f"one for each of {count} retrievers or none", documents)

    def select(self, retrievers: Sequence[str]) -> Answers:
        """Return the same question with only these retrievers, in this order.

        Raises:
            InputError: if the question has no such retriever.
        """
        for name in retrievers:
            expect(name in self.retrievers, "retrievers", f"some of {', '.join(self.retrievers)}", name)
        places = [self.retrievers.index(name) for name in retrievers]
        return replace(
            self,
            retrievers=list(retrievers),
            texts=[self.texts[i] for i in places],
            failures={name: reason for name, reason in self.failures.items() if name in retrievers},
            documents=[self.documents[i] for i in places] if self.documents else [],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: ``id, question, predictions{retriever: text or null}, failures, answers, documents``."""
        out: dict[str, Any] = {
            "id": self.id,
            "question": self.question,
            "predictions": dict(zip(self.retrievers, self.texts, strict=True)),
            "failures": self.failures,
            "answers": self.right,
        }
        return out | ({"documents": list(map(values_of, self.documents))} if self.documents else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Answers:
        """Rebuild from `to_dict`, ignoring other keys.

        Raises:
            InputError: if a key is missing or its value has the wrong type.
        """
        name = "Answers.from_dict"
        predictions = accept(f"{name}: predictions", values.get("predictions"), _PREDICTIONS)
        expect(bool(predictions), f"{name}: predictions", "an answer or null by retriever", predictions)
        id = values.get("id")
        found: dict[str, Any] = {
            "question": values.get("question"),
            "retrievers": list(predictions),
            "texts": list(predictions.values()),
            "failures": values.get("failures") or {},
            "documents": values.get("documents") or [],
            "right": values.get("answers") or [],
            "id": None if id is None else str(id),
        }
        answers: Answers = rebuilt(cls, found, name)
        return answers


def aligned(rows: Sequence[Answers]) -> list[Answers]:
    """Return all rows with their retrievers in the order of the first.

    Raises:
        InputError: if a row has other retrievers.
    """
    out = []
    for i, row in enumerate(rows):
        names = rows[0].retrievers
        if row.retrievers != names:
            same = sorted(row.retrievers) == sorted(names)
            expect(same, f"answers[{i}]", f"the retrievers {', '.join(names)}", ", ".join(row.retrievers))
            row = row.select(names)
        out.append(row)
    return out


@checked_methods
@dataclass(frozen=True, eq=False)
class Vote(SavedRecord):
    """The outcome of a vote on M answers to one question.

    Attributes:
        answer: the winning answer; None if the vote abstained.
        winner: its index among the retrievers; None if the vote abstained.
        retriever: the winner's name, or its index as text if the answers came without names.
        scores: float64 [M], Eq. 7; -inf for answers that cannot win: of a retriever that failed or is not selected,
            an empty answer, a refusal.
        support: float64 [M], pooled similarity to the others' answers, which is the score without the retriever's
            weight.
        contributions: float64 [M, S], the part of each similarity in the score; rows sum to the score, or to 0 if it
            is -inf.
        similarities: S names.
        abstained: why no answer won; None if one did.
    """

    answer: str | None
    winner: int | None
    retriever: str | None
    scores: FloatArray
    support: FloatArray
    contributions: FloatArray
    similarities: list[str]
    abstained: str | None = None

    _nulls: ClassVar = {"scores": -np.inf}
    _shapes: ClassVar = {"scores": "M", "support": "M", "contributions": "M S", "similarities": "S"}
