"""Reading files of examples: JSON or JSON lines, plain or gzipped, told by content."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fastreader.core.checks import check_int
from fastreader.data.rows import describe, parse_row
from fastreader.data.types import Example
from fastreader.errors import InputError

PathLike = str | os.PathLike[str]


class SkippedRows(UserWarning):
    """Rows of a file could not be read and were left out.

    Attributes:
        errors: one InputError a row, in file order; ``len(errors)`` is the count.
    """

    def __init__(self, path: PathLike, errors: list[InputError]) -> None:
        self.errors = errors
        rows = "1 row" if len(errors) == 1 else f"{len(errors)} rows"
        super().__init__(f"{os.fspath(path)}: skipped {rows}; the first: {errors[0]}")


def load_examples(path: PathLike, *, limit: int | None = None, skip_errors: bool = False) -> list[Example]:
    """Read all examples of a file; formats and errors as `iter_examples`.

    Args:
        path: the file.
        limit: read at most so many examples.
        skip_errors: leave out rows that cannot be read, and warn once with their count (`SkippedRows`).

    Returns:
        The examples in file order.
    """
    errors: list[InputError] = []
    examples = list(iter_examples(path, limit=limit, on_error=errors.append if skip_errors else None))
    if errors:
        warnings.warn(SkippedRows(path, errors), stacklevel=2)
    return examples


def iter_examples(
    path: PathLike, *, limit: int | None = None, on_error: Callable[[InputError], object] | None = None
) -> Iterator[Example]:
    """Read the examples of a file one by one; JSON lines are never held in memory as a whole.

    The format of each row is told from its keys:

    - Lost in the Middle and DPR: ``question, answers, ctxs[{id, title, text, score, hasanswer | has_answer,
      isgold}]``, and of our own ``candidates`` and ``id``;
    - FlashRAG: ``id, question, golden_answers, output.retrieval_result[{id, contents}]``, where the first line
      of ``contents`` is the title;
    - rank_llm: ``query{text, qid}`` or a string, ``candidates[{docid, score, doc}]``, where ``doc`` is a string
      or ``{title, text | segment | contents | content | body | passage}``.

    A file is a row a line, a JSON list, or ``{"data": [...]}``; gzip is told from its first bytes. Unknown keys
    are kept in `metadata`, identifiers become strings.

    Args:
        path: the file.
        limit: stop after so many examples; None reads all.
        on_error: called with the InputError of each row that cannot be read, which is then left out. Without
            it the error is raised.

    Yields:
        Examples in file order.

    Raises:
        InputError: naming the file and the line or item (both counted from 1): broken JSON, no known format, a
            missing key, a wrong or empty value. Also for a file that cannot be opened, holds no rows, or whose
            gzip data is cut short, whatever `on_error` is.
    """
    check_int("limit", limit, 0, optional=True)
    if limit == 0:
        return
    found = 0
    empty = True
    for where, row in _rows(Path(path)):
        empty = False
        try:
            example = parse_row(parse_json(row) if isinstance(row, bytes) else row)
        except InputError as error:
            located = InputError(f"{where}: {error}")
            if on_error is None:
                raise located from None
            on_error(located)
            continue
        yield example
        found += 1
        if found == limit:
            return
    if empty:
        raise InputError(f"{path}: expected at least one example, got a file without any")


def _rows(path: Path) -> Iterator[tuple[str, object]]:
    """Rows with their places: bytes of a line still to be decoded, or the decoded item of a list."""
    source = lines(path)
    head: list[tuple[int, bytes]] = []
    for numbered in source:
        head.append(numbered)
        if numbered[1].strip():
            break
    else:
        return
    every = itertools.chain(head, source)
    if _is_json_lines(path, head[-1][1]):
        yield from ((f"{path}, line {number}", line) for number, line in every if line.strip())
        return
    whole = b"".join(line for _, line in every)
    try:
        content = parse_json(whole)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    items = content.get("data", content) if isinstance(content, dict) else content
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        raise InputError(f"{path}: expected a list of examples, got {describe(items)}")
    yield from ((f"{path}, item {number}", item) for number, item in enumerate(items, 1))


def _is_json_lines(path: Path, first: bytes) -> bool:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return True
    try:
        row = parse_json(first)
    except InputError:
        return False
    return isinstance(row, dict) and not isinstance(row.get("data"), list)


def lines(path: PathLike) -> Iterator[tuple[int, bytes]]:
    """Lines of a plain or gzipped file, counted from 1; a byte order mark is dropped.

    Raises:
        InputError: the file cannot be read, or its gzip data is damaged.
    """
    number = 0
    try:
        with Path(path).open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            for number, line in enumerate(stream, 1):
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: gzip data is cut short or damaged after line {number} ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_json(text: bytes) -> object:
    """Decode JSON; the InputError says where it breaks, and leaves the file to the caller."""
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"expected UTF-8, got byte {text[error.start]:#04x} at offset {error.start}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}" if b"\n" in text.strip() else f"column {error.colno}"
        raise InputError(f"broken JSON at {place}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"broken JSON: {error}") from None
