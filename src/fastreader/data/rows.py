"""Check rows of files against the format that their keys determine, and convert them to Examples and Passages.

Unknown keys go to `metadata` under their own names; those found one level down (FlashRAG's `output`, rank_llm's
`query` and `doc`) stay one level down, so that no two can collide. Identifiers become strings, scores floats.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fastreader.core.checks import check_text, is_int, is_missing, rejecting, require
from fastreader.data.passage_texts import id_text, split_contents, titled
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError

_FORMATS = (
    "question and ctxs (Lost in the Middle, DPR), question and output.retrieval_result (FlashRAG), "
    "query and candidates (rank_llm), or question and results (fastreader rerank)"
)
ANSWER_KEYS = (  # the first with a value counts; in ragas's rows `answer` is what a model wrote
    "answers",
    "golden_answers",
    "possible_answers",
    "ground_truths",
    "ground_truth",
    "references",
    "reference",
    "answer",
)
"""Keys of right answers in data sets, in order of precedence after a format's own key."""

_LIKE_ANSWERS = re.compile("answer|correct|gold|label|reference|solution|target|truth", re.IGNORECASE)
_EXPECTED = {
    "blank": "text that is not empty",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "list_type": "a list",
    "model_type": "an object",
    "string_pattern_mismatch": "text that is not blank",
    "string_type": "a string",
    "string_unicode": "text that is valid Unicode",
    "too_short": "at least one",
}


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PydanticCustomError("string_unicode", "string_unicode") from None
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "blank")
    return text


def _id_as_text(value: object) -> object:
    return id_text(value) if is_int(value) or isinstance(value, float) else value


def _text_as_object(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "float_type")
    return value


AnyText = Annotated[str, AfterValidator(_encodable)]
Text = Annotated[str, AfterValidator(_encodable), AfterValidator(_not_blank)]
Id = Annotated[str, BeforeValidator(_id_as_text), AfterValidator(_encodable)]
Texts = list[Text]
Number = Annotated[FiniteFloat, BeforeValidator(_no_bool)]  # pydantic reads true as 1.0


class JsonRow(BaseModel):
    """A JSON object that keeps its unknown keys, and whose optional keys may be null."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_missing(cls, row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        optional = _optional_keys(cls)
        return {key: value for key, value in row.items() if key not in optional or not is_missing(value)}

    @property
    def rest(self) -> dict[str, Any]:
        """Values of the keys that the format does not know.

        Raises:
            InputError: if one holds an infinite number, which JSON cannot.
        """
        found = dict(self.model_extra or {})
        for key, value in found.items():
            if isinstance(value, (float, list, dict)):
                try:
                    with rejecting(f"{key}: expected finite numbers", ValueError):
                        json.dumps(value, allow_nan=False)
                except (RecursionError, TypeError):
                    pass  # an object of a table, which only a writer of JSON could not use
        return found


@functools.cache
def _optional_keys(model: type[BaseModel]) -> frozenset[str]:
    names: set[str] = set()
    for name, field in model.model_fields.items():
        if not field.is_required():
            alias = field.validation_alias
            names |= {str(c) for c in alias.choices} if isinstance(alias, AliasChoices) else {str(alias or name)}
    return frozenset(names)


class _Answered(JsonRow):
    """A row whose right answers may be under the keys of other data sets."""

    _own_key: ClassVar = "answers"

    @model_validator(mode="before")
    @classmethod
    def _find_answers(cls, row: Any) -> Any:
        own = cls._own_key
        if not isinstance(row, Mapping) or not (is_missing(row.get(own)) or row[own] == []):
            return row
        for key in ANSWER_KEYS:
            if key != own and (texts := _answer_texts(row.get(key))):
                return {**{name: value for name, value in row.items() if name != key}, own: texts}
        return row


def _answer_texts(value: object) -> list[str]:
    """Return the texts of an answer in any data set's form, or none if the value holds other things."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):  # PopQA writes a list as text
            try:
                listed = json.loads(value)
            except (RecursionError, ValueError):
                listed = None
            if isinstance(listed, list) and all(isinstance(text, str) for text in listed):
                return listed
        return [value] if value.strip() else []
    if isinstance(value, Mapping):  # TriviaQA, SQuAD
        return _answer_texts([value[key] for key in ("value", "aliases", "text") if value.get(key)])
    if not isinstance(value, (list, tuple)):
        return []
    parts = [[item] if isinstance(item, str) else _answer_texts(item) for item in value]
    return list(dict.fromkeys(text for part in parts for text in part if text.strip())) if all(parts) else []


def unread_answers(examples: Iterable[Example]) -> str:
    """Return a caution that names keys which may hold right answers, or "" if a question has answers or none has such.

    Args:
        examples: the questions, or the first of them.
    """
    keys: dict[str, None] = {}
    for example in examples:
        if example.answers:
            return ""
        keys |= dict.fromkeys(key for key in example.metadata if _LIKE_ANSWERS.search(key))
    known = f"right answers are read under {', '.join(ANSWER_KEYS)}, but not"
    return f"{known} under {', '.join(map(repr, keys))}" if keys else ""


class Question(_Answered):
    """A question with its answers, without its passages."""

    question: Text = Field(validation_alias=AliasChoices("question", "query"))
    answers: Texts = []
    id: Id | None = None


class DocumentRow(JsonRow):
    """A passage that belongs to no question."""

    id: Id | None = Field(None, validation_alias=AliasChoices("id", "_id", "docid"))
    title: AnyText | None = None
    text: AnyText | None = None
    contents: AnyText | None = None

    def passage(self) -> Passage:
        """Return the passage.

        Raises:
            InputError: if there is neither text nor title.
        """
        title, text = self.title or "", self.text
        if text is None and self.contents is not None:
            title, text = (title, self.contents) if title else split_contents(self.contents)
        require(bool(title or text is not None), "missing key 'text'")
        title, text = titled(title, text or "")
        check_text("text", text)
        return Passage(text, title, self.id, metadata=self.rest)


class _Judged(JsonRow):
    id: Id | None = None
    score: Number | None = None
    is_gold: bool | None = Field(None, validation_alias=AliasChoices("isgold", "is_gold"))
    has_answer: bool | None = Field(None, validation_alias=AliasChoices("hasanswer", "has_answer"))

    def passage(self, title: str, text: str) -> Passage:
        title, text = titled(title, text)
        return Passage(text, title, self.id, self.score, self.is_gold, self.has_answer, self.rest)


class _Titled(JsonRow):
    _text_keys: ClassVar[tuple[str, ...]] = ("text",)

    @model_validator(mode="before")
    @classmethod
    def _title_as_text(cls, row: Any) -> Any:
        if not isinstance(row, Mapping) or not isinstance(row.get("title"), str) or not row["title"].strip():
            return row
        texts = [row[key] for key in cls._text_keys if not is_missing(row.get(key))]
        if any(not isinstance(text, str) or text.strip() for text in texts):
            return row
        rest = {key: value for key, value in row.items() if key != "title" and key not in cls._text_keys}
        return {**rest, "text": row["title"]}


class _DprPassage(_Titled, _Judged):
    title: AnyText | None = None
    text: Text


class _Dpr(_Answered):
    question: Text
    ctxs: list[_DprPassage]
    answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        passages = [c.passage(c.title or "", c.text) for c in self.ctxs]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.rest)


class _FlashPassage(_Judged):
    contents: Text


class _FlashOutput(JsonRow):
    retrieval_result: list[_FlashPassage]


class _Flash(_Answered):
    _own_key: ClassVar = "golden_answers"

    question: Text
    output: _FlashOutput
    golden_answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        passages = [p.passage(*split_contents(p.contents)) for p in self.output.retrieval_result]
        metadata = self.rest | ({"output": self.output.rest} if self.output.rest else {})
        return Example(self.question, passages, self.golden_answers, self.candidates, self.id, metadata)


class _RankQuery(JsonRow):
    text: Text
    qid: Id | None = None


class _RankDocument(_Titled):
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


class _Rank(_Answered):
    query: Annotated[_RankQuery, BeforeValidator(_text_as_object)]
    candidates: list[_RankCandidate]
    answers: Texts = []

    def example(self) -> Example:
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


class _Ranked(JsonRow):
    id: Id | None = None
    question: Text
    answers: Texts = []
    candidates: Texts = []
    metadata: dict[str, Any] = {}
    results: list[_RankedResult]

    def example(self) -> Example:
        passages = [result.read() for result in self.results]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.metadata)


def _format_of(row: Mapping[str, Any]) -> tuple[str, type[_Dpr] | type[_Flash] | type[_Rank] | type[_Ranked]]:
    """Return the key of a row's question, and the model of its format."""
    if "ctxs" in row:
        return "question", _Dpr
    if isinstance(row.get("output"), Mapping):
        return "question", _Flash
    if "candidates" in row and "query" in row:
        return "query", _Rank
    if "results" in row:
        return "question", _Ranked
    begun = {"golden_answers": "output", "query": "candidates", "question": "ctxs"}
    missing = next((f"missing key {needed!r}, " for key, needed in begun.items() if key in row), "")
    raise InputError(f"{missing}expected the keys {_FORMATS}, got {describe(row)}")


def parse_row(row: object) -> Example:
    """Return a decoded row as an Example, in the format that its keys determine.

    Raises:
        InputError: if the format is unknown, a key is missing, or a value has another type; the message names the place
            in the row, and the caller adds file and line.
    """
    if not isinstance(row, dict):
        raise InputError(f"expected an object, got {describe(row)}")
    question, model = _format_of(row)
    require(question in row, f"missing key {question!r}, got {describe(row)}; expected the keys {_FORMATS}")
    return check(model, row).example()


RowType = TypeVar("RowType", bound=JsonRow)


def check(model: type[RowType], row: object) -> RowType:
    """Validate a row, raising InputError with the first error and the number of further ones."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise InputError(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = list(first["loc"])
    missing = first["type"] == "missing"
    message = f"missing key {where.pop()!r}, got {describe(first['input'])}" if missing else mismatch([first])
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")
    more = error.error_count() - 1
    return (f"{place}: " if place else "") + message + (f" (and {more} more wrong in this row)" if more else "")


def mismatch(errors: Sequence[Any]) -> str:
    """Return "expected A or B, got VALUE" from pydantic's errors about one value (one per type of a union)."""
    reasons = [_EXPECTED.get(error["type"], error["msg"].removeprefix("Input should be ")) for error in errors]
    return f"expected {' or '.join(dict.fromkeys(reasons))}, got {describe(errors[0]['input'])}"


def describe(value: object) -> str:
    """Describe a JSON value in a few words, for messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        keys = [str(key) for key in value]
        return f"an object with the keys {', '.join(keys[:12])}" if keys else "an object without keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the string {value[:40]!r}" + ("..." if len(value) > 40 else "")
    return f"the number {str(value)[:40]}"
