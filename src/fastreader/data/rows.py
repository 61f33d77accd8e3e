"""Check rows of files against models of their keys, of which `fastreader.data.formats` has one for each format."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
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
from fastreader.data.types import Passage
from fastreader.errors import InputError

EXPECTED = {
    "answers": "a text, a list of texts, or an object with value, aliases or text",
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
"""What a value should have been, by the type of pydantic's error."""


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


class PassageRow(JsonRow):
    """A passage with what the retriever and the annotators say about it."""

    id: Id | None = None
    score: Number | None = None
    is_gold: bool | None = Field(None, validation_alias=AliasChoices("isgold", "is_gold"))
    has_answer: bool | None = Field(None, validation_alias=AliasChoices("hasanswer", "has_answer"))

    def passage(self, title: str, text: str) -> Passage:
        """Return the passage with this title and text, which is the title if there is no text."""
        title, text = titled(title, text)
        return Passage(text, title, self.id, self.score, self.is_gold, self.has_answer, self.rest)


class TitledRow(JsonRow):
    """A row whose text is its title if there is no text."""

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
    reasons = [EXPECTED.get(error["type"], error["msg"].removeprefix("Input should be ")) for error in errors]
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
