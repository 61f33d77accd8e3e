"""Read examples or questions from files, plain or gzipped, and examples from tables."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_list, expect, is_missing, located, require
from fastreader.data.answers import AnsweredRow, Question, reject_lost_answers
from fastreader.data.containers import PathLike, file_rows, is_tsv, lines, nested_rows, parse_json
from fastreader.data.formats import PLAIN, find_format, parse_named, parse_row
from fastreader.data.formats.columns import as_objects
from fastreader.data.named import is_named, named_rows
from fastreader.data.rows import RowType, check
from fastreader.data.types import Example
from fastreader.errors import InputError

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
        path: the file or the name of a data set; or its rows, such as a list of dictionaries or a `datasets.Dataset`.
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
    - the output of ``fastreader rerank``, with the relevance as each passage's score;
    - rows of data sets as they are published: MS MARCO, HotpotQA, 2WikiMultihopQA, MuSiQue, CRAG, FEVER, SQuAD,
      Natural Questions, TriviaQA, PopQA, KILT, ASQA, ALCE, RGB, RAGTruth, ragas, SuRe's, GenRead's and pyserini's
      files. docs/data-sets.md lists the fields that are read;
    - ``question`` or ``query`` with right answers, without passages.

    Right answers may also be under ``answer``, ``possible_answers``, ``ground_truth``, ``reference`` and their plurals,
    as a text, a list or TriviaQA's object; the format's own key comes first, ``answer`` last.

    A value under a key of answers in any other form is an error, as the answers would be lost.

    A file has one row per line, is a JSON list, ``{"data": [...]}`` or an object of rows by identifier, or is a table
    separated by tabs with a header, named .tsv; gzip is detected from the first bytes.
    Unknown keys are kept in `metadata`, identifiers become strings. A passage without text has its title as its text;
    a question may have no passages. An optional key may be null, and NaN is read as null.

    A table yields rows with these keys: a list of dictionaries, a `datasets.Dataset` (streamed or not), or any other
    iterable of mappings or Examples. In a table None, NaN and pandas' NA are missing values.

    ``datasets:NAME``, with ``/CONFIG`` and ``:SPLIT`` if need be, and ``ir_datasets:NAME`` are loaded with these
    libraries, if no path has this name; docs/data-sets.md says what they give. `ir_datasets` keeps all its scored
    documents' ids in memory.

    Args:
        path: the file, the name of a data set, or the table.
        limit: read at most N examples; None reads all.
        on_error: called with the InputError of each row that cannot be read, which is then skipped. None raises the
            error.

    Yields:
        Examples in their order.

    Raises:
        InputError: if a row is not JSON, has no known format, lacks a key, or holds a wrong or empty value; the message
            names the file and the line or item, counted from 1, or the index in a table. Also if the file cannot be
            opened, there are no rows, gzip data is truncated, or a library cannot load a data set, even with
            `on_error`.
        MissingExtraError: if the library of a data set's name is not installed.
    """
    yield from (row.example for row in iter_named(path, limit, on_error))


class NamedExample(NamedTuple):
    """An example, the name of its row's format, and the row's place: file and line or item, or index in a table."""

    format: str
    example: Example
    place: str


def iter_named(
    path: PathLike | Iterable[Any], limit: int | None, on_error: Callable[[InputError], object] | None
) -> Iterator[NamedExample]:
    """Read as `iter_examples`, and also yield the name of each row's format and the row's place."""
    check_int("limit", limit, 0, optional=True)
    if limit == 0:
        return
    if isinstance(path, (str, os.PathLike)):
        nothing = "no row" if is_named(path) else "an empty file"
        yield from _named(_rows(path), limit, on_error, f"{path}", nothing)
    else:
        yield from _named(rows_of(TABLE, path), limit, on_error, TABLE, "no row")


def _rows(path: PathLike) -> Iterator[tuple[str, object]]:
    """Yield the rows of a file or a named data set with their places."""
    return rows_of(f"{path}", named_rows(f"{path}")) if is_named(path) else file_rows(Path(path))


def holds_examples(path: PathLike) -> bool:
    """Return whether the first row of a file is a question with passages, and not a passage of a corpus."""
    if is_tsv(Path(path)):
        return False
    for _, row in _separate(file_rows(Path(path))):
        known = find_format(row) if isinstance(row, dict) else None
        return known is not None and known is not PLAIN
    return False


def table_examples(name: str, table: Iterable[Any], *, limit: int | None = None) -> list[Example]:
    """Read all examples of a table that is the argument `name`, as `load_examples` reads its `path`."""
    return [row.example for row in _named(rows_of(name, table), limit, None, name, "no row")]


def _named(
    rows: Iterable[tuple[str, object]],
    limit: int | None,
    on_error: Callable[[InputError], object] | None,
    name: str,
    nothing: str,
) -> Iterator[NamedExample]:
    """Yield the rows as Examples.

    Args:
        rows: of `file_rows` or `rows_of`.
        limit, on_error: as in `iter_examples`.
        name: name of the rows, for messages.
        nothing: what there is if there are no rows, for messages.
    """
    found = 0
    empty = True
    for place, row in _separate(rows):
        empty = False
        try:
            if isinstance(row, InputError):
                raise row
            with located(place):
                named = ("Example", row) if isinstance(row, Example) else parse_named(row)
        except InputError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        yield NamedExample(*named, place)
        found += 1
        if found == limit:
            return
    require(not empty, f"{name}: expected at least one example, got {nothing}")


def _separate(rows: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Yield decoded rows, one for each question, or the InputError of a row that cannot be decoded."""
    for place, row in rows:
        try:
            with located(place):
                value = parse_json(row) if isinstance(row, bytes) else row
            yield from nested_rows(place, value)
        except InputError as error:
            yield place, error


@checked
def load_questions(path: PathLike, *, limit: int | None = None) -> list[Example]:
    """Read questions without the passages that they may hold.

    Args:
        path: a file or data set that `iter_examples` reads, or rows ``{question | query, answers, id}``, whose right
            answers may be under the keys that it reads.
        limit: read at most N questions; None reads all.

    Returns:
        Examples without passages.

    Raises:
        InputError: if a row is invalid, naming the file and the line; or if the file holds no question.
    """
    check_int("limit", limit, optional=True)
    found = list(itertools.islice(_questions(path), None if limit is None else min(int(limit), sys.maxsize)))
    require(bool(found), f"{path}: expected at least one question, got an empty file")
    return found


def _questions(path: PathLike) -> Iterator[Example]:
    for place, row in _separate(_rows(path)):
        if isinstance(row, InputError):
            raise row
        with located(place):
            values = row if isinstance(row, dict) else {}
            known = find_format(values)
            if known is None or (issubclass(known.model, AnsweredRow) and isinstance(values.get("query", ""), str)):
                asked = check(Question, row)
                reject_lost_answers(row, asked.answers)
                yield Example(asked.question, [], asked.answers, id=asked.id)
            else:
                yield replace(parse_row(row), passages=[], candidates=[], metadata={})


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
            item = as_objects(item)
        if not is_missing(item):
            found[key] = _present(item)
    return found
