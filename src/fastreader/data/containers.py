"""Yield the rows of a file, whatever holds them: JSON lines, a JSON list, an object of rows or of columns, a table."""

from __future__ import annotations

import ast
import csv
import gzip
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastreader.core.checks import located, rejecting, require
from fastreader.data.answers import QUESTION_IDS
from fastreader.data.files import HEAD, MAX_FILE, MAX_LINE, check_readable, container
from fastreader.data.formats import find_format
from fastreader.data.rows import describe
from fastreader.errors import InputError

PathLike = str | os.PathLike[str]


def file_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield rows with their places: the bytes of a line still to be decoded, or a decoded row.

    Raises:
        InputError: if the file cannot be read, or is neither JSON nor a table with a header.
    """
    if is_tsv(path):
        yield from _question_table(path)
        return
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
    items = content.get("data", content.get("Data", content)) if isinstance(content, dict) else content
    if isinstance(items, dict):
        yield str(path), items
        return
    if not isinstance(items, list):
        raise InputError(f"{path}: expected a list of examples, got {describe(items)}")
    yield from ((f"{path}, item {number}", item) for number, item in enumerate(items, 1))


def nested_rows(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the rows that a decoded value holds, with their places, or the value itself if it holds none.

    - ``{"Data": [...]}`` of TriviaQA;
    - an article of SQuAD, with its questions in ``paragraphs[].qas``;
    - rows by identifier, as in pyserini's files, and splits of them, as in ASQA's; the identifier becomes ``id``, the
      name of a split ``split``;
    - columns by identifier, as in MS MARCO's files.
    """
    if not isinstance(value, dict) or not value:
        yield place, value
    elif isinstance(value.get("Data"), list):
        for number, item in enumerate(value["Data"], 1):
            yield f"{place}, item {number}", item
    elif _has_questions(value.get("paragraphs")):
        yield from _squad(place, value)
    elif _is_columns(value):
        for key in next(iter(value.values())):
            yield f"{place}, row {key!r}", {column: values[key] for column, values in value.items()}
    elif _is_keyed(value):
        for key, row in value.items():
            if find_format(row) is None and _is_keyed(row):  # a split: its rows keep its name
                row = {name: {"split": key, **inner} for name, inner in row.items()}
            known = any(name in row for name in QUESTION_IDS) or find_format(row) is None
            yield from nested_rows(f"{place}, item {key!r}", row if known else {"id": key, **row})
    else:
        yield place, value


_QUESTION_KEYS = ("query", "question")


def _has_questions(paragraphs: object) -> bool:
    return isinstance(paragraphs, list) and any(isinstance(p, dict) and "qas" in p for p in paragraphs)


def _squad(place: str, article: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for number, paragraph in enumerate(article["paragraphs"], 1):
        at = f"{place}, paragraph {number}"
        questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
        require(isinstance(questions, list), f"{at}: expected an object with a list qas, got {describe(paragraph)}")
        shared = {key: value for key, value in paragraph.items() if key != "qas"}
        for index, asked in enumerate(questions or [], 1):
            require(isinstance(asked, dict), f"{at}, question {index}: expected an object, got {describe(asked)}")
            yield f"{at}, question {index}", {"title": article.get("title"), **shared, **asked}


def _is_columns(value: dict[str, Any]) -> bool:
    first = next((value[key] for key in _QUESTION_KEYS if key in value), None)
    if not isinstance(first, dict) or not all(isinstance(text, str) for text in first.values()):
        return False
    return all(isinstance(column, dict) and column.keys() == first.keys() for column in value.values())


def _is_keyed(value: dict[str, Any]) -> bool:
    if not all(isinstance(row, dict) and row for row in value.values()):
        return False
    return all(find_format(row) is not None or _is_keyed(row) for row in itertools.islice(value.values(), 1))


def is_tsv(path: Path) -> bool:
    """Return whether a file is a table by its name."""
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def tsv_rows(path: Path, quoted: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each line of a table that is separated by tabs, with its place.

    Args:
        path: the file, plain or gzipped.
        quoted: cells may be in double quotes, and then hold tabs and line breaks.
    """

    def texts() -> Iterator[str]:
        for number, line in lines(path):
            with rejecting(f"{path}, line {number}: expected UTF-8", UnicodeDecodeError):
                yield line.decode("utf-8")

    found = csv.reader(texts(), delimiter="\t", quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
    while True:
        with rejecting(f"{path}, line {found.line_num + 1}: not a table separated by tabs", csv.Error):
            cells = next(found, None)
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield f"{path}, line {found.line_num}", cells


def table_row(place: str, header: list[str], cells: list[str]) -> dict[str, Any]:
    """Return the cells that are not empty by their columns' names."""
    require(len(cells) == len(header), f"{place}: expected {len(header)} columns, got {len(cells)}")
    return {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}


def _question_table(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the questions of a table with a header (PopQA), or of DPR's, which has two columns without one."""
    rows = tsv_rows(path)
    first, header = next(rows, ("", []))
    if not header:
        return
    if any(key in header for key in _QUESTION_KEYS):
        yield from ((at, table_row(at, header, cells)) for at, cells in rows)
        return
    listed = len(header) == 2 and header[1].startswith("[")
    require(listed, f"{first}: expected a header line with question and answers, got {', '.join(header)[:200]!r}")
    for place, cells in itertools.chain([(first, header)], rows):
        row = table_row(place, list(_QUESTION_TABLE), cells)
        expected = "two columns, a question and a list of answers"
        with rejecting(f"{place}: expected {expected}", ValueError, SyntaxError, RecursionError):
            yield place, {**row, "answers": ast.literal_eval(row.get("answers", "[]"))}


_QUESTION_TABLE = ("question", "answers")


def _is_json_lines(path: Path, first: bytes) -> bool:
    if _named_json_lines(path):
        return True
    try:
        row = parse_json(first)
    except InputError:
        return False
    return isinstance(row, dict) and not isinstance(row.get("data", row.get("Data")), list)


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
