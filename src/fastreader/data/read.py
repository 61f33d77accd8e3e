"""Read examples, questions or passages from JSON files, plain or gzipped, and examples from tables."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_list, expect, is_missing, located, require
from fastreader.data.files import HEAD, MAX_FILE, MAX_LINE, check_readable, container
from fastreader.data.rows import DocumentRow, Question, RowType, check, describe, parse_row
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError

PathLike = str | os.PathLike[str]
TABLE = "path"  # the argument that may also hold rows, as messages name it


class SkippedRows(UserWarning):
    """Warning that some rows could not be read and were skipped.

    Attributes:
        errors: one InputError per skipped row, in their order.
    """

    def __init__(self, path: PathLike | Iterable[Any], errors: list[InputError]) -> None:
        self.errors = errors
        rows = "1 row" if len(errors) == 1 else f"{len(errors)} rows"
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else TABLE
        super().__init__(f"{name}: skipped {rows}; the first: {errors[0]}")


@checked
def load_examples(
    path: PathLike | Iterable[Any], *, limit: int | None = None, skip_errors: bool = False
) -> list[Example]:
    """Read all examples of a file or a table, with the formats and errors of `iter_examples`.

    Args:
        path: the file; or its rows, such as a list of dictionaries or a `datasets.Dataset`.
        limit: read at most N examples; None reads all.
        skip_errors: skip rows that cannot be read, and warn once with their number (`SkippedRows`).

    Returns:
        The examples in their order.
    """
    errors: list[InputError] = []
    examples = list(iter_examples(path, limit=limit, on_error=errors.append if skip_errors else None))
    if errors:
        warnings.warn(SkippedRows(path, errors), stacklevel=2)
    return examples


@checked
def iter_examples(
    path: PathLike | Iterable[Any],
    *,
    limit: int | None = None,
    on_error: Callable[[InputError], object] | None = None,
) -> Iterator[Example]:
    """Read the examples of a file or a table one by one.

    JSON lines are never held in memory as a whole. The keys of each row determine its format:

    - Lost in the Middle and DPR: ``question, answers, ctxs[{id, title, text, score, hasanswer | has_answer,
      isgold}]``, and our own ``candidates`` and ``id``;
    - FlashRAG: ``id, question, golden_answers, output.retrieval_result[{id, contents}]``, with the title in the first
      line of ``contents``;
    - rank_llm: ``query{text, qid}`` or a string, ``candidates[{docid, score, doc}]`` with ``doc`` a string
      or ``{title, text | segment | contents | content | body | passage}``;
    - the output of ``fastreader rerank``, with the relevance as each passage's score.

    Right answers may also be under ``answer``, ``possible_answers``, ``ground_truth``, ``reference`` and their plurals,
    as a text, a list or TriviaQA's object; the format's own key comes first, ``answer`` last.

    A file has one row per line, or is a JSON list or ``{"data": [...]}``; gzip is detected from the first bytes.
    Unknown keys are kept in `metadata`, identifiers become strings. A passage without text has its title as its text;
    a question may have no passages. An optional key may be null, and NaN is read as null.

    A table yields rows with these keys: a list of dictionaries, a `datasets.Dataset` (streamed or not), or any other
    iterable of mappings or Examples. In a table None, NaN and pandas' NA are missing values.

    Args:
        path: the file, or the table.
        limit: read at most N examples; None reads all.
        on_error: called with the InputError of each row that cannot be read, which is then skipped. None raises the
            error.

    Yields:
        Examples in their order.

    Raises:
        InputError: if a row is not JSON, has no known format, lacks a key, or holds a wrong or empty value; the message
            names the file and the line or item, counted from 1, or the index in a table. Also if the file cannot be
            opened, there are no rows, or gzip data is truncated, even with `on_error`.
    """
    check_int("limit", limit, 0, optional=True)
    if limit == 0:
        return
    if isinstance(path, (str, os.PathLike)):
        yield from _parsed(_rows(Path(path)), limit, on_error, f"{path}", "an empty file")
    else:
        yield from _parsed(rows_of(TABLE, path), limit, on_error, TABLE, "no row")


def table_examples(name: str, table: Iterable[Any], *, limit: int | None = None) -> list[Example]:
    """Read all examples of a table that is the argument `name`, as `load_examples` reads its `path`."""
    return list(_parsed(rows_of(name, table), limit, None, name, "no row"))


def _parsed(
    rows: Iterable[tuple[str, object]],
    limit: int | None,
    on_error: Callable[[InputError], object] | None,
    name: str,
    nothing: str,
) -> Iterator[Example]:
    found = 0
    empty = True
    for place, row in rows:
        empty = False
        try:
            with located(place):
                example = _example(row)
        except InputError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        yield example
        found += 1
        if found == limit:
            return
    require(not empty, f"{name}: expected at least one example, got {nothing}")


def _example(row: object) -> Example:
    if isinstance(row, Example):
        return row
    return parse_row(parse_json(row) if isinstance(row, bytes) else row)


@checked
def load_questions(path: PathLike, *, limit: int | None = None) -> list[Example]:
    """Read lines ``{question | query, answers, id}``, without the passages that they may hold.

    Right answers may be under the keys that `iter_examples` reads.

    Args:
        path: JSON lines, plain or gzipped.
        limit: read at most N questions; None reads all.

    Returns:
        Examples without passages.

    Raises:
        InputError: if a line is invalid, naming the file and the line; or if the file holds no question.
    """
    check_int("limit", limit, optional=True)
    rows = itertools.islice(iter_rows(path, Question), None if limit is None else min(int(limit), sys.maxsize))
    found = [Example(row.question, [], row.answers, id=row.id) for _, row in rows]
    require(bool(found), f"{path}: expected at least one question, got an empty file")
    return found


@checked
def load_passages(path: PathLike) -> list[Passage]:
    """Read passages that belong to no question, one JSON object per line, plain or gzipped.

    Keys: ``text`` (or ``contents``, whose first line is the title if there is no ``title``), ``title``, ``id`` (or
    ``_id``, ``docid``); others are kept in `metadata`. A passage without text gets its title as its text.

    Raises:
        InputError: if a line is invalid or has no text, naming the file and the line; or if the file cannot be read or
            holds no passage.
    """
    found = []
    for place, row in iter_rows(path, DocumentRow):
        with located(place):
            found.append(row.passage())
    require(bool(found), f"{path}: expected at least one passage, got an empty file")
    return found


def iter_rows(
    path: PathLike, model: type[RowType], wanted: Container[str] | None = None
) -> Iterator[tuple[str, RowType]]:
    """Read JSON lines of one model, skipping blank lines.

    Args:
        path: the file, plain or gzipped.
        model: checks each row.
        wanted: read only rows whose ``_id`` is one of these; None reads all.

    Yields:
        The place of each row (file and line) for messages, and the row.

    Raises:
        InputError: if a line is invalid, naming its place.
    """
    for number, line in lines(path):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        with located(place):
            values = parse_json(line)
            if wanted is not None and isinstance(values, dict) and "_id" in values and str(values["_id"]) not in wanted:
                continue
            row = check(model, values)
        yield place, row


def _rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield rows with their places: the bytes of a line still to be decoded, or the decoded item of a list."""
    source = lines(path, MAX_LINE if _named_json_lines(path) else MAX_FILE)
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
    whole = bytearray()
    for _, line in every:
        whole += line
        require(len(whole) <= MAX_FILE, f"{path}: is longer than {MAX_FILE:,} bytes; write JSON lines")
    with located(str(path)):
        content = parse_json(whole)
    items = content.get("data", content) if isinstance(content, dict) else content
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        raise InputError(f"{path}: expected a list of examples, got {describe(items)}")
    yield from ((f"{path}, item {number}", item) for number, item in enumerate(items, 1))


def _is_json_lines(path: Path, first: bytes) -> bool:
    if _named_json_lines(path):
        return True
    try:
        row = parse_json(first)
    except InputError:
        return False
    return isinstance(row, dict) and not isinstance(row.get("data"), list)


def _named_json_lines(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def lines(path: PathLike, limit: int = MAX_LINE) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a plain or gzipped file, counted from 1, without a byte order mark.

    Raises:
        InputError: if the file cannot be read, its gzip data is damaged, or a line is longer than `limit` bytes.
    """
    check_readable(path)
    number = 0
    try:
        with Path(path).open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            kind = container(stream.peek(HEAD)[:HEAD])
            require(not kind, f"{path}: expected UTF-8 text, plain or gzipped once, got {kind}")
            for number, line in enumerate(iter(lambda: stream.readline(limit + 1), b""), 1):
                require(len(line) <= limit, f"{path}, line {number}: is longer than {limit:,} bytes")
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: gzip data is truncated or damaged after line {number} ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"{path}, line {number + 1}: does not fit in memory") from error


def parse_json(text: bytes | bytearray) -> object:
    """Decode JSON whose objects have each key once.

    Raises:
        InputError: naming the place in the text or the repeated key; the caller adds the file.
    """
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"expected UTF-8, got byte {text[error.start]:#04x} at offset {error.start}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}" if b"\n" in text.strip() else f"column {error.colno}"
        raise InputError(f"broken JSON at {place}: {error.msg}{_looks_like(text.strip(), error.pos)}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"broken JSON: {error}") from None
    except MemoryError as error:
        raise InputError(f"{len(text):,} bytes of JSON do not fit in memory") from error


def _constant(name: str) -> float | None:
    """Return the value of what is no JSON, but written by json.dumps and pandas: NaN is a missing value."""
    return None if name == "NaN" else float(name)


def _looks_like(text: bytes | bytearray, position: int) -> str:
    """Return what a text that is no JSON may be, for messages."""
    first = text.split(b"\n", 1)[0].rstrip()
    if first.endswith((b"[", b"{")) and first == text:
        return "; a list or an object on several lines belongs into a .json file, JSON lines have one object a line"
    if first[:1] in b'{["' or position > len(first):
        return ""
    kind = "XML or HTML" if first.startswith(b"<") else "TSV" if b"\t" in first else "CSV" if b"," in first else ""
    read = "; read it with pandas and pass df.to_dict('records')" if kind in ("TSV", "CSV") else ""
    return f"; this looks like {kind}{read}" if kind else ""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object, and reject a repeated key, of which JSON does not define the value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise InputError(f"expected each key once, got {repeated!r} twice in one object")
    return found


_COLUMNS = ("ctxs", "candidates", "retrieval_result")  # lists of objects, which a table may keep as columns


def rows_of(name: str, table: Iterable[Any]) -> Iterator[tuple[str, object]]:
    """Yield the rows of a table, or its Examples, with their places, for `parse_row`.

    A table has every key in every row, so values that are None or NaN count as missing. NumPy's arrays and scalars
    become lists and Python's values. Lists of objects may be kept as columns, as `datasets` does for a `Sequence` of
    features.

    Args:
        name: name of the argument, for messages.
        table: yields mappings or Examples.

    Raises:
        InputError: if `table` is not a list or another iterable of rows.
    """
    check_list(name, table, of="rows")
    for number, row in enumerate(table):
        place = f"{name}[{number}]"
        if isinstance(row, Example):
            yield place, row
            continue
        expect(isinstance(row, Mapping), place, "a mapping or an Example", row)
        yield place, _present(row)


def _present(value: Any) -> Any:
    """Return a value of Python's types without missing values, and with columns as lists of objects."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_present(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {}
    for key, item in value.items():
        if key in _COLUMNS and isinstance(item, Mapping):
            item = _objects(item)
        if not is_missing(item):
            found[key] = _present(item)
    return found


def _objects(columns: Mapping[Any, Any]) -> Any:
    """Return the objects whose values the columns hold, or the mapping itself if the columns differ in length."""
    columns = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in columns.items()}
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns.values()}
    if len(lengths) != 1 or -1 in lengths:
        return columns
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
