"""Check rows of files against the format that their keys determine, and convert them to Examples and Passages.

Unknown keys go to `metadata` under their own names; those found one level down (FlashRAG's `output`, rank_llm's
`query` and `doc`) stay one level down, so that no two can collide. Identifiers become strings, scores floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from fastreader.core.checks import check_text, given
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError

_FORMATS = (
    "question and ctxs (Lost in the Middle, DPR), question and output.retrieval_result (FlashRAG), "
    "or query and candidates (rank_llm)"
)
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


def _has_body(contents: str) -> str:
    _not_blank(split_contents(contents)[1])
    return contents


def _id_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text_as_object(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text of FlashRAG's `contents`: the first line is the title, and a single line is the text."""
    title, newline, text = contents.partition("\n")
    return (title, text) if newline else ("", title)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "float_type")
    return value


AnyText = Annotated[str, AfterValidator(_encodable)]
Text = Annotated[str, AfterValidator(_encodable), AfterValidator(_not_blank)]
Contents = Annotated[str, AfterValidator(_encodable), AfterValidator(_has_body)]
Id = Annotated[str, BeforeValidator(_id_as_text), AfterValidator(_encodable)]
Texts = list[Text]
Number = Annotated[FiniteFloat, BeforeValidator(_no_bool)]  # pydantic reads true as 1.0


class JsonRow(BaseModel):
    """A JSON object that keeps its unknown keys."""

    model_config = ConfigDict(extra="allow")

    @property
    def rest(self) -> dict[str, Any]:
        """Values of the keys that the format does not know."""
        return dict(self.model_extra or {})


def document(title: str | None, text: str, id: str | None, metadata: dict[str, Any]) -> Passage:
    """Return a passage, whose text is the title if there is no text, as in some rows of BEIR.

    Raises:
        InputError: if there is neither text nor title.
    """
    title, text = (title or "", text) if text.strip() else ("", title or "")
    check_text("text", text)
    return Passage(text, title, id, metadata=metadata)


class Question(JsonRow):
    """A question with its answers, without its passages."""

    question: Text = Field(validation_alias=AliasChoices("question", "query"))
    answers: Texts = Field(default=[], validation_alias=AliasChoices("answers", "golden_answers"))
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
        if text is None:
            contents = given(self.contents, "missing key 'text'")
            title, text = (title, contents) if title else split_contents(contents)
        return document(title, text, self.id, self.rest)


class _Judged(JsonRow):
    id: Id | None = None
    score: Number | None = None
    is_gold: bool | None = Field(None, validation_alias=AliasChoices("isgold", "is_gold"))
    has_answer: bool | None = Field(None, validation_alias=AliasChoices("hasanswer", "has_answer"))

    def passage(self, title: str, text: str) -> Passage:
        return Passage(text, title, self.id, self.score, self.is_gold, self.has_answer, self.rest)


class _DprPassage(_Judged):
    title: AnyText | None = None
    text: Text


class _Dpr(JsonRow):
    question: Text
    ctxs: list[_DprPassage] = Field(min_length=1)
    answers: Texts = []
    candidates: Texts = []
    id: Id | None = None

    def example(self) -> Example:
        passages = [c.passage(c.title or "", c.text) for c in self.ctxs]
        return Example(self.question, passages, self.answers, self.candidates, self.id, self.rest)


class _FlashPassage(_Judged):
    contents: Contents


class _FlashOutput(JsonRow):
    retrieval_result: list[_FlashPassage] = Field(min_length=1)


class _Flash(JsonRow):
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


class _RankDocument(JsonRow):
    title: AnyText | None = None
    text: Text = Field(validation_alias=AliasChoices("text", "segment", "contents", "content", "body", "passage"))


class _RankCandidate(JsonRow):
    docid: Id | None = None
    score: Number | None = None
    doc: Annotated[_RankDocument, BeforeValidator(_text_as_object)]

    def passage(self) -> Passage:
        metadata = self.rest | ({"doc": self.doc.rest} if self.doc.rest else {})
        return Passage(self.doc.text, self.doc.title or "", self.docid, self.score, metadata=metadata)


class _Rank(JsonRow):
    query: Annotated[_RankQuery, BeforeValidator(_text_as_object)]
    candidates: list[_RankCandidate] = Field(min_length=1)

    def example(self) -> Example:
        metadata = self.rest | ({"query": self.query.rest} if self.query.rest else {})
        passages = [c.passage() for c in self.candidates]
        return Example(self.query.text, passages, id=self.query.qid, metadata=metadata)


def parse_row(row: object) -> Example:
    """Return a decoded row as an Example, in the format that its keys determine.

    Raises:
        InputError: if the format is unknown, a key is missing, or a value has another type; the message names the place
            in the row, and the caller adds file and line.
    """
    if not isinstance(row, dict):
        raise InputError(f"expected an object, got {describe(row)}")
    model: type[_Dpr] | type[_Flash] | type[_Rank]
    if "ctxs" in row:
        model = _Dpr
    elif "output" in row or "golden_answers" in row:
        model = _Flash
    elif "query" in row:
        model = _Rank
    elif "question" in row:
        model = _Dpr
    else:
        raise InputError(f"expected the keys {_FORMATS}, got {describe(row)}")
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
