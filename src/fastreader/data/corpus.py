"""Passages that belong to no question: a pool to draw from."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from fastreader.data.read import PathLike, lines, parse_json
from fastreader.data.rows import AnyText, Id, Row, check, split_contents
from fastreader.data.types import Passage
from fastreader.errors import InputError


class _PoolRow(Row):
    id: Id | None = Field(None, validation_alias=AliasChoices("id", "_id", "docid"))
    title: AnyText | None = None
    text: AnyText | None = None
    contents: AnyText | None = None

    def passage(self) -> Passage:
        title, text = self.title or "", self.text
        if text is None:
            if self.contents is None:
                raise InputError("missing key 'text'")
            title, text = (title, self.contents) if title else split_contents(self.contents)
        if not text.strip():  # BEIR has documents that are a title alone
            title, text = "", title
        if not text.strip():
            raise InputError("text: expected text that is not empty, got none, and no title")
        return Passage(text, title, self.id, metadata=self.rest)


def load_passages(path: PathLike) -> list[Passage]:
    """Read a pool of passages, one JSON object a line, plain or gzipped.

    Keys: ``text`` (or ``contents``, whose first line is the title where there is no ``title``), ``title``, ``id`` (or
    ``_id``, ``docid``); others are kept in `metadata`. A passage without text gives its title as its text.

    Raises:
        InputError: naming the file and the line: broken JSON, no text, a value of another kind; or a file that cannot
            be read or holds no passage.
    """
    passages = []
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            passages.append(check(_PoolRow, parse_json(line)).passage())
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not passages:
        raise InputError(f"{path}: expected at least one passage, got a file without any")
    return passages
