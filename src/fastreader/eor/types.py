"""What the stages hand on: retrieved documents, answers, votes. All of them are JSON values both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.data.types import Passage
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]


def whole_text(passage: Passage) -> str:
    """Title, if there is one, and text, a line each."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


@dataclass(frozen=True)
class Document:
    """What one retriever has for one question.

    Attributes:
        retriever: its specification.
        passages: in reading order; none for ReFree, or where it failed.
        failure: why there is no document; None where all went well.
        notes: what of it is missing, such as a source among several that returned nothing.
    """

    retriever: str
    passages: list[Passage] = field(default_factory=list)
    failure: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Titles and texts of the passages, a line each; what the error analysis searches."""
        return "\n".join(map(whole_text, self.passages))


@dataclass(frozen=True)
class Retrieval:
    """The documents of M retrievers for one question.

    Attributes:
        question: its text.
        documents: one a retriever.
        right: the right answers; empty when unknown.
        id: the question's identifier.
    """

    question: str
    documents: list[Document]
    right: list[str] = field(default_factory=list)
    id: str | None = None


@dataclass(frozen=True)
class Answers:
    """The answers of M retrievers to one question.

    Attributes:
        question: its text.
        retrievers: M names.
        texts: M answers; None where the retriever failed.
        failures: why, by retriever.
        documents: what was read for each; empty when not kept.
        right: the right answers; empty when unknown.
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
        if len(self.retrievers) != len(self.texts):
            raise InputError(
                f"Answers: expected one text a retriever, got {len(self.texts)} for {len(self.retrievers)} retrievers"
            )
        if len(set(self.retrievers)) < len(self.retrievers):
            raise InputError(f"Answers: expected each retriever once, got {', '.join(self.retrievers)}")
        if self.documents and len(self.documents) != len(self.retrievers):
            raise InputError(f"Answers: expected {len(self.retrievers)} documents or none, got {len(self.documents)}")

    def select(self, retrievers: Sequence[str]) -> Answers:
        """The same question with only these retrievers, in this order.

        Raises:
            InputError: a retriever is not among them.
        """
        if missing := [name for name in retrievers if name not in self.retrievers]:
            raise InputError(f"Answers.select: no retriever {missing[0]!r}; there are {', '.join(self.retrievers)}")
        places = [self.retrievers.index(name) for name in retrievers]
        return replace(
            self,
            retrievers=list(retrievers),
            texts=[self.texts[i] for i in places],
            failures={name: reason for name, reason in self.failures.items() if name in retrievers},
            documents=[self.documents[i] for i in places] if self.documents else [],
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values: ``id, question, predictions{retriever: text or null}, failures, answers, documents``."""
        out: dict[str, Any] = {
            "id": self.id,
            "question": self.question,
            "predictions": dict(zip(self.retrievers, self.texts, strict=True)),
            "failures": self.failures,
            "answers": self.right,
        }
        if self.documents:
            out["documents"] = [asdict(document) for document in self.documents]
        return out

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Answers:
        """Rebuild from `to_dict`; other keys are passed over.

        Raises:
            InputError: a key is missing or of another kind.
        """
        predictions = values.get("predictions")
        if not isinstance(predictions, Mapping) or not predictions:
            raise InputError(f"Answers: expected predictions{{retriever: text or null}}, got the keys {sorted(values)}")
        if not isinstance(question := values.get("question"), str):
            raise InputError(f"Answers: expected a question, got {question!r}")
        for name, text in predictions.items():
            if text is not None and not isinstance(text, str):
                raise InputError(f"Answers: predictions[{name!r}]: expected a text or null, got {text!r}")
        right = values.get("answers") or []
        if not isinstance(right, list) or not all(isinstance(answer, str) for answer in right):
            raise InputError(f"Answers: expected answers as a list of texts, got {right!r}")
        try:
            documents = [
                Document(
                    d["retriever"], [Passage(**p) for p in d["passages"]], d.get("failure"), list(d.get("notes") or [])
                )
                for d in values.get("documents") or []
            ]
        except (KeyError, TypeError) as error:
            raise InputError(f"Answers: expected documents{{retriever, passages, failure}}, got {error!r}") from error
        return cls(
            question=question,
            retrievers=list(predictions),
            texts=list(predictions.values()),
            failures=dict(values.get("failures") or {}),
            documents=documents,
            right=right,
            id=None if values.get("id") is None else str(values["id"]),
        )


def aligned(rows: Sequence[Answers]) -> list[Answers]:
    """All rows with their retrievers in the order of the first.

    Raises:
        InputError: a row has other retrievers.
    """
    out = []
    for i, row in enumerate(rows):
        names = rows[0].retrievers
        if sorted(row.retrievers) != sorted(names):
            raise InputError(
                f"answers[{i}]: expected the retrievers {', '.join(names)}, got {', '.join(row.retrievers)}"
            )
        out.append(row if row.retrievers == names else row.select(names))
    return out


@dataclass(frozen=True, eq=False)
class Vote:
    """How M answers to one question came out.

    Attributes:
        answer: the one that won; None when abstained.
        winner: its place among the retrievers; None when abstained.
        retriever: its retriever's name, or its place as text where the answers came without names.
        scores: float64 [M], Eq. 7; -inf for what cannot win: a retriever that failed or is not selected, an
            empty answer, a refusal.
        support: float64 [M], pooled similarity to the others' answers, the score without the retriever's weight.
        contributions: float64 [M, S], what each similarity adds to the score; rows sum to it (0 where it is -inf).
        similarities: S names.
        abstained: why nobody won; None when somebody did.
    """

    answer: str | None
    winner: int | None
    retriever: str | None
    scores: FloatArray
    support: FloatArray
    contributions: FloatArray
    similarities: list[str]
    abstained: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values; a score of -inf is null."""
        return {
            "answer": self.answer,
            "winner": self.winner,
            "retriever": self.retriever,
            "scores": [None if np.isneginf(score) else float(score) for score in self.scores],
            "support": self.support.tolist(),
            "contributions": self.contributions.tolist(),
            "similarities": self.similarities,
            "abstained": self.abstained,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vote:
        """Rebuild from `to_dict`; other keys are passed over.

        Raises:
            InputError: a key is missing or its shape does not fit.
        """
        try:
            scores = np.array([-np.inf if s is None else s for s in values["scores"]], dtype=np.float64)
            names = list(values["similarities"])
            return cls(
                answer=values["answer"],
                winner=values["winner"],
                retriever=values["retriever"],
                scores=scores,
                support=np.asarray(values["support"], dtype=np.float64).reshape(len(scores)),
                contributions=np.asarray(values["contributions"], dtype=np.float64).reshape(len(scores), len(names)),
                similarities=names,
                abstained=values["abstained"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"Vote.from_dict: {error!r} in values with the keys {sorted(values)}") from error
