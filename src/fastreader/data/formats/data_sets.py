"""Formats in which data sets of questions are published, with the passages that come in their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from fastreader.core.checks import expect, located, require
from fastreader.data.answers import QUESTION_IDS, UNKNOWN, AnsweredRow, AnswerTexts, AnyAnswersRow, answer_texts
from fastreader.data.formats.columns import as_objects
from fastreader.data.formats.retrieved import ListedPassage
from fastreader.data.passage_texts import joined_sentences, titled
from fastreader.data.rows import AnyText, Id, JsonRow, Text, Texts
from fastreader.data.types import Example, Passage


def _distinct(*lists: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for texts in lists for text in texts))


def _with_text(place: str, title: str | None, text: str, **rest: Any) -> Passage:
    title, text = titled(title, text)
    require(bool(text.strip()), f"{place}: expected text or a title, got neither")
    return Passage(text, title, **rest)


class _MarcoPassage(JsonRow):
    passage_text: Text
    is_selected: bool | None = None


class MarcoRow(AnyAnswersRow):
    """MS MARCO question answering, v1.1 and v2.1. "No Answer Present." is an answer like any other."""

    query: Text
    passages: Annotated[list[_MarcoPassage], BeforeValidator(as_objects)]
    answers: AnswerTexts = []
    query_id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [Passage(p.passage_text, is_gold=p.is_selected, metadata=p.rest) for p in self.passages]
        return Example(self.query, passages, self.answers, id=self.query_id, metadata=self.rest)


def _decoded(value: object) -> object:
    """Return a list that is written as text, as 2WikiMultihopQA is on the hub, or the value itself."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _paragraphs(value: object) -> object:
    """Return HotpotQA's pairs of a title and sentences as objects, which its form on the hub has as columns."""
    value = _decoded(value)
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return [{"title": title, "sentences": sentences} for title, sentences in value]
    return as_objects(value)


class _Paragraph(JsonRow):
    title: AnyText
    sentences: list[AnyText] = Field(validation_alias=AliasChoices("sentences", "content"))


class _Fact(JsonRow):
    title: AnyText
    sent_id: int

    def pair(self) -> list[Any]:
        return [self.title, self.sent_id]


def _facts(value: object) -> object:
    value = _decoded(value)
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return [{"title": title, "sent_id": index} for title, index in value]
    return as_objects(value)


class HotpotRow(AnyAnswersRow):
    """HotpotQA and 2WikiMultihopQA, as published and on the hub. A passage is a paragraph of Wikipedia."""

    _own_key: ClassVar = "answer"

    question: Text
    context: Annotated[list[_Paragraph], BeforeValidator(_paragraphs)]
    supporting_facts: Annotated[list[_Fact], BeforeValidator(_facts)] | None = None
    answer: AnswerTexts = []
    id: Id | None = Field(None, validation_alias=AliasChoices("_id", "id"))

    def example(self) -> Example:
        """Return the row as an Example."""
        # Test questions come without these facts.
        gold = {fact.title for fact in self.supporting_facts or ()} or None
        passages = []
        for i, p in enumerate(self.context):
            is_gold = None if gold is None else p.title in gold
            passages.append(_with_text(f"context[{i}]", p.title, joined_sentences(p.sentences), is_gold=is_gold))
        facts = {} if self.supporting_facts is None else {"supporting_facts": [f.pair() for f in self.supporting_facts]}
        return Example(self.question, passages, self.answer, id=self.id, metadata=self.rest | facts)


class _MusiquePassage(JsonRow):
    paragraph_text: Text
    title: AnyText = ""
    idx: Id | None = None
    is_supporting: bool | None = None


class MusiqueRow(AnyAnswersRow):
    """MuSiQue."""

    _own_key: ClassVar = "answer"

    question: Text
    paragraphs: list[_MusiquePassage]
    answer: AnswerTexts = []
    answer_aliases: AnswerTexts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = [
            Passage(p.paragraph_text, p.title, p.idx, is_gold=p.is_supporting, metadata=p.rest) for p in self.paragraphs
        ]
        answers = _distinct(self.answer, self.answer_aliases)
        return Example(self.question, passages, answers, id=self.id, metadata=self.rest)


class _CragPage(JsonRow):
    page_name: AnyText | None = None
    page_snippet: AnyText = ""
    page_url: Id | None = None


class CragRow(AnyAnswersRow):
    """CRAG. A passage is the snippet of a web page, whose HTML is not read."""

    dropped: ClassVar = {"page_result": "the page's HTML, of which page_snippet is the text that was found"}
    _own_key: ClassVar = "answer"

    query: Text
    search_results: list[_CragPage]
    answer: AnswerTexts = []
    alt_ans: AnswerTexts = []
    interaction_id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passages = []
        for i, page in enumerate(self.search_results):
            rest = {key: value for key, value in page.rest.items() if key != "page_result"}
            found = _with_text(f"search_results[{i}]", page.page_name, page.page_snippet, id=page.page_url)
            found.metadata.update(rest)
            passages.append(found)
        answers = _distinct(self.answer, self.alt_ans)
        return Example(self.query, passages, answers, id=self.interaction_id, metadata=self.rest)


class FeverRow(JsonRow):
    """FEVER: a claim, whose label is the answer and whose candidates are the labels.

    The evidence names sentences of Wikipedia without their text; passages may come as DPR's ``ctxs``.
    """

    labels: ClassVar = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")

    claim: Text
    label: Literal["SUPPORTS", "REFUTES", "NOT ENOUGH INFO", ""] = ""
    ctxs: list[ListedPassage] = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        answers: list[str] = [self.label] if self.label else []
        passages = [c.passage(c.title or "", c.text) for c in self.ctxs]
        return Example(self.claim, passages, answers, list(self.labels), self.id, self.rest)


class _AlceDocument(ListedPassage):
    answers_found: list[bool] | None = None

    def passage(self, title: str, text: str) -> Passage:
        """Return the passage, which has an answer if any short answer was found in it."""
        found = super().passage(title, text)
        if self.answers_found is None:
            return found
        metadata = found.metadata | {"answers_found": list(map(int, self.answers_found))}
        return Passage(found.text, found.title, found.id, found.score, found.is_gold, any(self.answers_found), metadata)


class AsqaRow(JsonRow):
    """ASQA, and ALCE's files of ASQA, QAMPARI and ELI5.

    Answers are the short answers of all readings of the question. `metadata` has them by reading: ASQA's as
    ``qa_pairs``, QAMPARI's as ``answer_groups``; and the long answer as ``answer``.
    """

    question: Text = Field(validation_alias=AliasChoices("question", "ambiguous_question"))
    docs: list[_AlceDocument] = []
    qa_pairs: Annotated[list[dict[str, Any]], BeforeValidator(as_objects)] = []
    answers: AnswerTexts = []
    answer: AnswerTexts = []
    answer_groups: Any = None
    id: Id | None = Field(None, validation_alias=AliasChoices("sample_id", "id"))

    @model_validator(mode="before")
    @classmethod
    def _keep_groups(cls, row: Any) -> Any:
        groups = row.get("answers") if isinstance(row, Mapping) else None
        nested = isinstance(groups, list) and any(isinstance(group, list) for group in groups)
        return {**row, "answer_groups": groups} if nested else row

    def example(self) -> Example:
        """Return the row as an Example."""
        answers, metadata = list(self.answers), self.rest
        for i, pair in enumerate(self.qa_pairs):
            texts = answer_texts(pair.get("short_answers"))
            expect(bool(texts), f"qa_pairs[{i}].short_answers", "at least one text", pair.get("short_answers"))
            answers += texts
        long = self.answer if answers else []
        kept = {"qa_pairs": self.qa_pairs, "answer_groups": self.answer_groups, "answer": "\n".join(long)}
        passages = [d.passage(d.title or "", d.text) for d in self.docs]
        metadata |= {key: value for key, value in kept.items() if value}
        return Example(self.question, passages, _distinct(answers or self.answer), id=self.id, metadata=metadata)


class GoldRow(AnyAnswersRow):
    """nq_open_gold of The Power of Noise: the annotated passage, with its index in the corpus as its id."""

    question: Text
    text: Text
    idx_gold_in_corpus: Id
    answers: AnswerTexts = []
    example_id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        gold = Passage(self.text, id=self.idx_gold_in_corpus, is_gold=True)
        return Example(self.question, [gold], self.answers, id=self.example_id, metadata=self.rest)


class _KiltOutput(JsonRow):
    answer: AnswerTexts = []
    provenance: list[dict[str, Any]] = []


class KiltRow(JsonRow):
    """KILT, whose provenance names paragraphs of Wikipedia without their text."""

    input: Text
    output: list[_KiltOutput]
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        provenance = [o.provenance for o in self.output if o.provenance]
        metadata = self.rest | ({"provenance": provenance} if provenance else {})
        answers = _distinct(*(o.answer for o in self.output))
        return Example(self.input, [], answers, id=self.id, metadata=metadata)


class SquadRow(AnyAnswersRow):
    """SQuAD 1.1 and 2.0, whose passage is annotated as the one that the question is about."""

    question: Text
    context: Text
    title: AnyText = ""
    answers: AnswerTexts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        passage = Passage(self.context, self.title, is_gold=True, has_answer=bool(self.answers) or None)
        return Example(self.question, [passage], self.answers, id=self.id, metadata=self.rest)


class RgbRow(AnyAnswersRow):
    """RGB: texts that hold the answer, and texts that do not."""

    _own_key: ClassVar = "answer"

    query: Text
    positive: list[Text]
    negative: list[Text] = []
    answer: AnswerTexts = []
    id: Id | None = None

    def example(self) -> Example:
        """Return the row as an Example."""
        texts = [(text, True) for text in self.positive] + [(text, False) for text in self.negative]
        passages = [Passage(text, is_gold=gold, has_answer=gold) for text, gold in texts]
        return Example(self.query, passages, self.answer, id=self.id, metadata=self.rest)


_PAGE_TEXTS = ("wiki_context", "search_context", "description")


def _snake(value: object) -> object:
    """Return a value of TriviaQA's own files with the keys that its form on the hub has."""
    if isinstance(value, list):
        return [_snake(item) for item in value]
    if isinstance(value, Mapping):
        return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower(): _snake(item) for key, item in value.items()}
    return value


class TriviaRow(JsonRow):
    """TriviaQA, as published and on the hub. Its pages are whole ones; a page without text stays in `metadata`."""

    question: Text
    answer: AnswerTexts = []
    question_id: Id | None = None
    entity_pages: Annotated[list[dict[str, Any]], BeforeValidator(as_objects)] = []
    search_results: Annotated[list[dict[str, Any]], BeforeValidator(as_objects)] = []

    @model_validator(mode="before")
    @classmethod
    def _as_on_the_hub(cls, row: Any) -> Any:
        return _snake(row) if isinstance(row, Mapping) and "Question" in row else row

    def example(self) -> Example:
        """Return the row as an Example."""
        passages: list[Passage] = []
        metadata = self.rest
        for key, pages in (("entity_pages", self.entity_pages), ("search_results", self.search_results)):
            for i, page in enumerate(pages):
                with located(f"{key}[{i}]"):
                    passage = self._page(page)
                if passage is None:
                    metadata.setdefault(key, []).append(page)
                else:
                    passages.append(passage)
        answers = [text for text in self.answer if text != UNKNOWN]
        return Example(self.question, passages, answers, id=self.question_id, metadata=metadata)

    @staticmethod
    def _page(page: dict[str, Any]) -> Passage | None:
        key = next((k for k in _PAGE_TEXTS if isinstance(page.get(k), str) and page[k].strip()), None)
        if key is None:
            return None
        rest = {k: value for k, value in page.items() if k not in (key, "title")}
        return Passage(page[key], page.get("title") or "", metadata=rest)


_LIKE_PASSAGES = re.compile(
    "passage|context|ctx|document|^docs?$|retriev|evidence|chunk|snippet|paragraph|sources?$|hits?$|results?$",
    re.IGNORECASE,
)
_LIKE_TEXT = re.compile("(gold_?)?(passage|context|ctx|document|evidence|paragraph|snippet)", re.IGNORECASE)


class PlainRow(AnsweredRow):
    """A question with its answers and without passages: NQ-open, WebQuestions, PopQA, GenRead, FlashRAG."""

    question: Text = Field(validation_alias=AliasChoices("question", "query"))
    answers: Texts = []
    candidates: Texts = []
    id: Id | None = Field(None, validation_alias=AliasChoices(*QUESTION_IDS))

    def example(self) -> Example:
        """Return the row as an Example.

        Raises:
            InputError: if another key seems to hold passages, which would be lost.
        """
        for key, value in self.rest.items():
            like = _LIKE_PASSAGES.search(key) if isinstance(value, (list, dict)) else _LIKE_TEXT.fullmatch(key)
            lost = bool(value) and isinstance(value, (list, dict, str)) and like
            require(not lost, f"{key}: passages are not read from this key; name it ctxs, with objects {{title, text}}")
        return Example(self.question, [], self.answers, self.candidates, self.id, self.rest)
