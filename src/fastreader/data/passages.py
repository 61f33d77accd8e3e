"""Passage files: a pool to retrieve from, one JSON object a line, plain or gzipped."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from fastreader.data.read import PathLike, lines, parse_json
from fastreader.data.rows import AnyText, Id, Row, check, split_contents
from fastreader.data.types import Passage
from fastreader.errors import InputError


class _Pooled(Row):
    id: Id | None = Field(None, validation_alias=AliasChoices("id", "_id", "docid"))
    title: AnyText | None = None
    text: AnyText | None = None
    contents: AnyText | None = None

    def passage(self) -> Passage:
        title, text = self.title or "", self.text
        if text is None:
            title, text = split_contents(self.contents or "") if self.title is None else (title, self.contents or "")
        if not text.strip():  # BEIR has documents that are a title alone
            title, text = "", title
        if not text.strip():
            raise InputError("expected a text, contents or at least a title, got neither")
        return Passage(text, title, self.id, metadata=self.rest)


def load_passages(path: PathLike, *, limit: int | None = None) -> list[Passage]:
    """Read a pool: lines ``{id | _id | docid, title, text}`` (BEIR, DPR) or ``{id, contents}`` (FlashRAG, Pyserini).

    Args:
        path: the file.
        limit: read at most so many.

    Raises:
        InputError: naming the file and the line; or a file without passages.
    """
    if limit is not None and limit < 1:
        raise InputError(f"load_passages: limit must be at least 1, got {limit}")
    passages: list[Passage] = []
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            passages.append(check(_Pooled, parse_json(line)).passage())
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        if len(passages) == limit:
            break
    if not passages:
        raise InputError(f"{path}: expected at least one passage, got a file without any")
    return passages
