"""BEIR's corpus and queries, joined by a TREC run."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from fastreader.data.read import PathLike, lines, parse_json
from fastreader.data.rows import AnyText, Id, Row, RowType, Text, check
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError


class _Document(Row):
    id: Id = Field(validation_alias="_id")
    title: AnyText | None = None
    text: AnyText


class _Query(Row):
    id: Id = Field(validation_alias="_id")
    text: Text


@dataclass(frozen=True)
class _Hit:
    document: str
    rank: int
    score: float
    line: int


def load_beir(
    corpus: PathLike,
    queries: PathLike,
    run: PathLike,
    *,
    qrels: PathLike | None = None,
    top_k: int | None = None,
    limit: int | None = None,
) -> list[Example]:
    """Join BEIR's corpus and queries by a TREC run; each file plain or gzipped.

    Only documents that the run names are held in memory. As in trec_eval the score orders a query's passages;
    the rank decides between equal scores. A document without text (BEIR has such) gives its title as its text.

    Args:
        corpus: JSON lines ``{_id, title, text}``.
        queries: JSON lines ``{_id, text}``.
        run: lines ``qid Q0 docid rank score tag``.
        qrels: as for `load_qrels`. With it every passage's `is_gold` is set: judged relevant or not; an unjudged
            passage counts as not. Give what `load_qrels` reads to `retrieval_measures` too, which otherwise knows
            nothing of relevant documents that the run lacks.
        top_k: keep the best so many passages of each query.
        limit: keep the first so many queries.

    Returns:
        One Example a query, in the order in which the run first names them.

    Raises:
        InputError: naming the file and the line: a run line without its six columns, a document named twice for
            a query, a query or document that the run names and the files lack, a broken row.
    """
    for name, value in (("top_k", top_k), ("limit", limit)):
        if value is not None and value < 1:
            raise InputError(f"load_beir: {name} must be at least 1, got {value}")
    hits = dict(list(_read_run(run).items())[:limit])
    hits = {qid: sorted(found, key=lambda hit: (-hit.score, hit.rank))[:top_k] for qid, found in hits.items()}
    questions = _read_queries(queries, set(hits))
    documents = _read_corpus(corpus, {hit.document for found in hits.values() for hit in found})
    judged = None if qrels is None else load_qrels(qrels)
    examples = []
    for qid, found in hits.items():
        if qid not in questions:
            raise InputError(f"{run}, line {found[0].line}: query {qid!r} is not in {queries}")
        passages = []
        for hit in found:
            if hit.document not in documents:
                raise InputError(f"{run}, line {hit.line}: document {hit.document!r} is not in {corpus}")
            gold = None if judged is None else judged.get(qid, {}).get(hit.document, 0) > 0
            passages.append(replace(documents[hit.document], score=hit.score, is_gold=gold))
        query = questions[qid]
        examples.append(Example(query.text, passages, id=qid, metadata=query.rest))
    return examples


def _read_run(path: PathLike) -> dict[str, list[_Hit]]:
    hits: dict[str, dict[str, _Hit]] = {}
    for number, columns in _columns(path):
        if len(columns) != 6:
            raise InputError(
                f"{path}, line {number}: expected the 6 columns qid Q0 docid rank score tag, got {len(columns)}"
            )
        qid, _, document, rank, score, _ = columns
        try:
            hit = _Hit(document, int(rank), float(score), number)
        except ValueError:
            raise InputError(
                f"{path}, line {number}: expected a whole rank and a number as score, got {rank!r} and {score!r}"
            ) from None
        if not math.isfinite(hit.score):
            raise InputError(f"{path}, line {number}: expected a finite score, got {score}")
        earlier = hits.setdefault(qid, {}).setdefault(document, hit)
        if earlier is not hit:
            raise InputError(
                f"{path}, line {number}: document {document!r} came for query {qid!r} on line {earlier.line} already"
            )
    if not hits:
        raise InputError(f"{path}: expected at least one line qid Q0 docid rank score tag, got an empty file")
    return {qid: list(found.values()) for qid, found in hits.items()}


def load_qrels(path: PathLike) -> dict[str, dict[str, int]]:
    """Relevance judgements of a file, plain or gzipped.

    Args:
        path: lines ``qid docid relevance`` (BEIR, with its heading) or ``qid 0 docid relevance`` (TREC).

    Returns:
        For each query its judged documents and their grades; a grade above 0 is relevant.

    Raises:
        InputError: naming the line: other columns, a grade that is no whole number, or a second grade of a document.
    """
    found: dict[str, dict[str, int]] = {}
    for number, columns in _columns(path):
        if number == 1 and columns[-1] == "score":
            continue
        try:
            qid, document, relevance = columns if len(columns) == 3 else (columns[0], *columns[2:])
            grade = int(float(relevance))
            if grade != float(relevance):
                raise ValueError(relevance)
        except (ValueError, OverflowError):
            raise InputError(
                f"{path}, line {number}: expected qid docid relevance or qid 0 docid relevance, "
                f"got {' '.join(columns)!r}"
            ) from None
        if found.setdefault(qid, {}).setdefault(document, grade) != grade:
            raise InputError(f"{path}, line {number}: document {document!r} has another grade for {qid!r} already")
    return found


def _columns(path: PathLike) -> list[tuple[int, list[str]]]:
    """Lines split at white space, with their numbers; blank lines left out."""
    found = []
    for number, line in lines(path):
        try:
            columns = line.decode("utf-8").split()
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {number}: expected UTF-8, got {line[:40]!r}") from None
        if columns:
            found.append((number, columns))
    return found


def _read_queries(path: PathLike, wanted: set[str]) -> dict[str, _Query]:
    found: dict[str, _Query] = {}
    for number, line in lines(path):
        if (row := _row(_Query, path, number, line, wanted)) is not None:
            _check_new(row.id, found, path, number)
            found[row.id] = row
    return found


def _read_corpus(path: PathLike, wanted: set[str]) -> dict[str, Passage]:
    documents: dict[str, Passage] = {}
    for number, line in lines(path):
        row = _row(_Document, path, number, line, wanted)
        if row is None:
            continue
        _check_new(row.id, documents, path, number)
        title, text = row.title or "", row.text
        if not text.strip():
            title, text = "", title
        if not text.strip():
            raise InputError(f"{path}, line {number}: expected a text or a title, document {row.id!r} has neither")
        documents[row.id] = Passage(text, title, row.id, metadata=row.rest)
    return documents


def _check_new(name: str, found: Container[str], path: PathLike, number: int) -> None:
    if name in found:
        raise InputError(f"{Path(path)}, line {number}: expected each _id once, got {name!r} again")


def _row(model: type[RowType], path: PathLike, number: int, line: bytes, wanted: set[str]) -> RowType | None:
    """The row of a line when its `_id` is wanted."""
    if not line.strip():
        return None
    try:
        row = parse_json(line)
        if isinstance(row, dict) and "_id" in row and str(row["_id"]) not in wanted:
            return None
        return check(model, row)
    except InputError as error:
        raise InputError(f"{Path(path)}, line {number}: {error}") from None
