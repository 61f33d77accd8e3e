"""Formats of what retrievers and rankers write: questions with lists of passages."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field

from fastreader.data.answers import AnsweredRow, AnswerTexts
from fastreader.data.passage_texts import split_contents, split_quoted
from fastreader.data.rows import AnyText, Id, JsonRow, Number, PassageRow, Text, Texts, TitledRow
from fastreader.data.types import Example, Passage


class ListedPassage(TitledRow, PassageRow):
    """A passage with a title and a text, as most formats write it."""

    title: AnyText | None = None
    text: Text


class DprRow(AnsweredRow):
    """Lost in the Middle and DPR, and what fastreader writes."""

    question: Text
    ctxs: list[ListedPassage]
    answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [c.passage(c.title or "", c.text) for c in self.ctxs]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.rest)


class _FlashPassage(PassageRow):
    contents: Text


class _FlashOutput(JsonRow):
    retrieval_result: list[_FlashPassage]


class FlashRow(AnsweredRow):
    """FlashRAG with retrieval results."""

    _own_key: ClassVar = "golden_answers"

    question: Text
    output: _FlashOutput
    golden_answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [p.passage(*split_contents(p.contents)) for p in self.output.retrieval_result]
        metadata = self.rest | ({"output": self.output.rest} if self.output.rest else {})
        return Example(self.question, passages, self.golden_answers, self.candidates, self.id, metadata)


def _text_as_object(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


class _RankQuery(JsonRow):
    text: Text
    qid: Id | None = None


class _RankDocument(TitledRow):
    _text_keys: ClassVar[tuple[str, ...]] = ("text", "segment", "contents", "content", "body", "passage")

    title: AnyText | None = None
    text: Text = Field(validation_alias=AliasChoices(*_text_keys))


class _RankCandidate(JsonRow):
    docid: Id | None = None
    score: Number | None = None
    doc: Annotated[_RankDocument, BeforeValidator(_text_as_object)]

    def passage(self) -> Passage:
        metadata = self.rest | ({"doc": self.doc.rest} if self.doc.rest else {})
        return Passage(self.doc.text, self.doc.title or "", self.docid, self.score, metadata=metadata)


class RankRow(AnsweredRow):
    """rank_llm."""

    query: Annotated[_RankQuery, BeforeValidator(_text_as_object)]
    candidates: list[_RankCandidate]
    answers: Texts = []

    def example(self) -> Example:
        """Return the row as an Example."""
        metadata = self.rest | ({"query": self.query.rest} if self.query.rest else {})
        passages = [c.passage() for c in self.candidates]
        return Example(self.query.text, passages, self.answers, id=self.query.qid, metadata=metadata)


class _RankedPassage(JsonRow):
    text: AnyText
    title: AnyText = ""
    id: Id | None = None
    is_gold: bool | None = None
    has_answer: bool | None = None
    metadata: dict[str, Any] = {}


class _RankedResult(JsonRow):
    passage: _RankedPassage
    relevance: Number

    def read(self) -> Passage:
        own = self.passage
        return Passage(own.text, own.title, own.id, self.relevance, own.is_gold, own.has_answer, own.metadata)


class RankedRow(JsonRow):
    """The output of ``fastreader rerank``."""

    id: Id | None = None
    question: Text
    answers: Texts = []
    candidates: Texts = []
    metadata: dict[str, Any] = {}
    results: list[_RankedResult]

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [result.read() for result in self.results]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.metadata)


class _ContextPassage(ListedPassage):
    id: Id | None = Field(None, validation_alias=AliasChoices("id", "docid"))

    def passage(self, title: str, text: str) -> Passage:
        if self.title is None:  # pyserini writes the title into the text
            title, text = split_quoted(text)
        return super().passage(title, text)


class ContextsRow(AnsweredRow):
    """SuRe's files, pyserini's retrieval results, and ragas's older rows, whose contexts are texts."""

    question: Text
    contexts: list[Annotated[_ContextPassage, BeforeValidator(_text_as_object)]]
    answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [c.passage(c.title or "", c.text) for c in self.contexts]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.rest)


class RagasRow(JsonRow):
    """Rows of ragas, whose right answer is the reference."""

    question: Text = Field(validation_alias="user_input")
    contexts: list[Text] = Field(validation_alias="retrieved_contexts")
    answers: AnswerTexts = Field([], validation_alias="reference")

    def example(self) -> Example:
        """Return the row as an Example."""
        return Example(self.question, [Passage(text) for text in self.contexts], self.answers, metadata=self.rest)


class DocumentsRow(AnsweredRow):
    """RAGTruth as Bergen writes it: documents are texts, or objects with a text."""

    question: Text
    documents: list[Annotated[_ContextPassage, BeforeValidator(_text_as_object)]]
    answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [d.passage(d.title or "", d.text) for d in self.documents]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.rest)


class _TrainingPassage(ListedPassage):
    id: Id | None = Field(None, validation_alias=AliasChoices("passage_id", "psg_id", "id"))


class RetrieverTrainingRow(AnsweredRow):
    """DPR's files for training a retriever: annotated passages, and others that are wrong."""

    question: Text
    positive_ctxs: list[_TrainingPassage]
    hard_negative_ctxs: list[_TrainingPassage] = []
    negative_ctxs: list[_TrainingPassage] = []
    answers: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        listed = [(True, self.positive_ctxs), (False, self.hard_negative_ctxs), (False, self.negative_ctxs)]
        passages = [replace(c.passage(c.title or "", c.text), is_gold=gold) for gold, ctxs in listed for c in ctxs]
        return Example(self.question, passages, self.answers, id=self.id, metadata=self.rest)
