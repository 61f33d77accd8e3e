"""Question files: questions with their right answers, with or without passages."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from fastreader.core.checks import check_int
from fastreader.data.read import PathLike, lines, parse_json
from fastreader.data.rows import Id, Row, Text, Texts, check
from fastreader.data.types import Example
from fastreader.errors import InputError


class _Question(Row):
    question: Text = Field(validation_alias=AliasChoices("question", "query"))
    answers: Texts = Field(default=[], validation_alias=AliasChoices("answers", "golden_answers"))
    id: Id | None = None


def load_questions(path: PathLike, *, limit: int | None = None) -> list[Example]:
    """Read lines ``{question | query, answers | golden_answers, id}``; passages in the file are passed over.

    Args:
        path: JSON lines, plain or gzipped.
        limit: read at most so many.

    Returns:
        Examples without passages.

    Raises:
        InputError: naming the file and the line; or a file without questions.
    """
    check_int("limit", limit, optional=True)
    found: list[Example] = []
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = check(_Question, parse_json(line))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        found.append(Example(row.question, [], row.answers, id=row.id))
        if len(found) == limit:
            break
    if not found:
        raise InputError(f"{path}: expected at least one question, got a file without any")
    return found
