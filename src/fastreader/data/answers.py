"""Find right answers in rows, under the keys and in the forms of many data sets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fastreader.core.checks import is_missing, require
from fastreader.data.rows import EXPECTED, Id, JsonRow, Text, Texts, describe
from fastreader.data.types import Example

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

UNKNOWN = "<unk>"
"""TriviaQA's answer to a question whose answers are not published."""

QUESTION_IDS = ("id", "_id", "question_id", "qid", "query_id", "sample_id")
"""Keys of a question's identifier in data sets, in order of precedence."""

_LIKE_ANSWERS = re.compile("answer|correct|gold|label|reference|solution|target|truth", re.IGNORECASE)


class AnyAnswersRow(JsonRow):
    """A row whose right answers may be under the keys of other data sets."""

    _own_key: ClassVar = "answers"

    @model_validator(mode="before")
    @classmethod
    def _find_answers(cls, row: Any) -> Any:
        own = cls._own_key
        if not isinstance(row, Mapping) or not (is_missing(row.get(own)) or row[own] == []):
            return row
        for key in ANSWER_KEYS:
            if key != own and (texts := answer_texts(row.get(key))):
                return {**{name: value for name, value in row.items() if name != key}, own: texts}
        return row


class AnsweredRow(AnyAnswersRow):
    """Such a row of which `Question` reads the question and the answers, even if its passages cannot be read."""


def answer_texts(value: object) -> list[str]:
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
        return answer_texts([value[key] for key in ("value", "aliases", "text") if value.get(key)])
    if not isinstance(value, (list, tuple)):
        return []
    parts = [[item] if isinstance(item, str) else answer_texts(item) for item in value]
    return list(dict.fromkeys(text for part in parts for text in part if text.strip())) if all(parts) else []


def _are_numbers(value: object) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return bool(values) and all(isinstance(each, (int, float)) and not is_missing(each) for each in values)


def _is_empty(value: object) -> bool:
    """Return whether a value holds no text, number or truth value at any depth."""
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_empty, value))
    return is_missing(value) or (isinstance(value, str) and not value.strip())


def _all_texts(value: object) -> list[str]:
    texts = answer_texts(value)
    if not texts and not _is_empty(value):
        raise PydanticCustomError("answers", "answers")
    return texts


AnswerTexts = Annotated[Texts, BeforeValidator(_all_texts)]
"""Right answers in any data set's form, none of which is lost."""


def reject_lost_answers(row: Any, found: Sequence[str]) -> None:
    """Raise InputError if no right answer was found in a row that has a value where one is expected.

    Args:
        row: the row, a mapping.
        found: the right answers that were found in it.
    """
    for key in ANSWER_KEYS if not found else ():
        value = row.get(key)
        certain = "answer" in key or "truth" in key or _are_numbers(value)  # a reference may be something else
        lost = certain and not _is_empty(value) and {*answer_texts(value)} != {UNKNOWN}
        readable = "right answers are not read from this key"
        reason = readable if answer_texts(value) else f"expected {EXPECTED['answers']}"
        require(not lost, f"{key}: {reason}, got {describe(value)}")


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


class Question(AnsweredRow):
    """A question with its answers, without its passages."""

    question: Text = Field(validation_alias=AliasChoices("question", "query"))
    answers: Texts = []
    id: Id | None = Field(None, validation_alias=AliasChoices(*QUESTION_IDS))
