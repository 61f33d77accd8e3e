"""Natural Questions in its own forms: a whole page of Wikipedia as tokens, with annotated spans.

Passages are the top-level candidates for the long answer (paragraphs, lists, tables) and the annotated ones; answers
are the annotated short answers, and "yes" and "no".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field

from fastreader.core.checks import expect, require
from fastreader.data.formats.columns import as_objects
from fastreader.data.rows import AnyText, Id, JsonRow, Text
from fastreader.data.types import Example, Passage

_TAG = re.compile(r"<[^>]*>")
_YES_NO: Mapping[object, str] = {1: "yes", 0: "no", "YES": "yes", "NO": "no"}


class _Span(JsonRow):
    start_token: int
    end_token: int
    top_level: bool = True


class _Annotation(JsonRow):
    long_answer: _Span
    short_answers: Annotated[list[_Span], BeforeValidator(as_objects)] = []
    yes_no_answer: int | str = "NONE"


def _text(place: str, tokens: Sequence[str], span: _Span) -> str:
    inside = 0 <= span.start_token < span.end_token <= len(tokens)
    expect(inside, place, f"tokens from 0 to {len(tokens)}", f"{span.start_token} to {span.end_token}")
    return " ".join(t for t in tokens[span.start_token : span.end_token] if not _TAG.fullmatch(t))


class _PageRow(JsonRow):
    dropped: ClassVar = {
        "the page": "whose candidates for the long answer are the passages",
        "long_answer_candidates": "places in the page",
    }

    annotations: Annotated[list[_Annotation], BeforeValidator(as_objects)]
    long_answer_candidates: Annotated[list[_Span], BeforeValidator(as_objects)]

    def _example(self, question: str, title: str, tokens: Sequence[str], id: str | None) -> Example:
        gold = {(a.long_answer.start_token, a.long_answer.end_token) for a in self.annotations}
        passages = []
        for i, span in enumerate(self.long_answer_candidates):
            is_gold = (span.start_token, span.end_token) in gold
            text = _text(f"long_answer_candidates[{i}]", tokens, span)
            if (span.top_level or is_gold) and text.strip():
                passages.append(Passage(text, title, str(i), is_gold=is_gold))
        found = sum(bool(p.is_gold) for p in passages)
        wanted = {span for span in gold if span[0] >= 0}
        require(found >= bool(wanted), "annotations: no long answer is among the candidates")
        answers: dict[str, None] = {}
        for i, annotation in enumerate(self.annotations):
            for j, span in enumerate(annotation.short_answers):
                answers[_text(f"annotations[{i}].short_answers[{j}]", tokens, span)] = None
            if annotation.yes_no_answer in _YES_NO:
                answers[_YES_NO[annotation.yes_no_answer]] = None
        return Example(question, passages, list(answers), id=id, metadata=self.rest)


class SimplifiedNqRow(_PageRow):
    """Natural Questions, simplified: the page as a text whose tokens are separated by spaces."""

    question_text: Text
    document_text: Text
    document_title: AnyText = ""
    example_id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        return self._example(self.question_text, self.document_title, self.document_text.split(" "), self.example_id)


class _Token(JsonRow):
    token: AnyText


class OriginalNqRow(_PageRow):
    """Natural Questions as first published: the page as tokens and as HTML."""

    dropped: ClassVar = {
        **_PageRow.dropped,
        "document_html": "the page with its markup",
        "question_tokens": "words of the question",
    }

    question_text: Text
    document_tokens: Annotated[list[_Token], BeforeValidator(as_objects)]
    document_title: AnyText = ""
    example_id: Id | None = None
    document_html: object = None
    question_tokens: object = None

    def example(self) -> Example:
        """Return the row as an Example."""
        tokens = [t.token for t in self.document_tokens]
        return self._example(self.question_text, self.document_title, tokens, self.example_id)


class _Page(JsonRow):
    tokens: Annotated[list[_Token], BeforeValidator(as_objects)]
    title: AnyText = ""
    url: AnyText | None = None


class _Question(JsonRow):
    text: Text


class HubNqRow(_PageRow):
    """Natural Questions on the hub: the page as a list of tokens."""

    question: _Question
    document: _Page
    id: Id | None = Field(None, validation_alias=AliasChoices("id", "example_id"))

    def example(self) -> Example:
        """Return the row as an Example."""
        page = self.document
        found = self._example(self.question.text, page.title, [t.token for t in page.tokens], self.id)
        found.metadata.update({"document_url": page.url} if page.url else {})
        return found
