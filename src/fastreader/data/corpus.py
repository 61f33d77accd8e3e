"""Passages that belong to no question: a pool to draw from."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from fastreader.data.read import PathLike, lines, parse_json
from fastreader.data.rows import AnyText, Id, Row, Text, check
from fastreader.data.types import Passage
from fastreader.errors import InputError


class _PoolRow(Row):
    id: Id | None = Field(None, validation_alias=AliasChoices("id", "_id", "docid"))
    title: AnyText | None = None
    text: Text = Field(validation_alias=AliasChoices("text", "contents"))


def load_passages(path: PathLike) -> list[Passage]:
    """Read a pool of passages, one JSON object a line, plain or gzipped.

    Keys: ``text`` (or ``contents``), ``title``, ``id`` (or ``_id``, ``docid``); others are kept in `metadata`.

    Raises:
        InputError: naming the file and the line: broken JSON, no text, a value of another kind; or a file that cannot
            be read or holds no passage.
    """
    passages = []
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = check(_PoolRow, parse_json(line))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        passages.append(Passage(row.text, row.title or "", row.id, metadata=row.rest))
    if not passages:
        raise InputError(f"{path}: expected at least one passage, got a file without any")
    return passages
