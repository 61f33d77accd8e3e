"""Join BEIR's corpus and queries by a TREC run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import Field

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_number, expect, located
from fastreader.data.containers import PathLike, lines
from fastreader.data.passage_texts import titled
from fastreader.data.read import SkippedRows, iter_rows
from fastreader.data.rows import AnyText, Id, JsonRow, Text
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError


class _Document(JsonRow):
    id: Id = Field(validation_alias="_id")
    title: AnyText | None = None
    text: AnyText = ""


class _Query(JsonRow):
    id: Id = Field(validation_alias="_id")
    text: Text


@dataclass(frozen=True)
class _Hit:
    document: str
    rank: int
    score: float
    place: str


@checked
def load_beir(
    corpus: PathLike,
    queries: PathLike,
    run: PathLike,
    *,
    qrels: PathLike | None = None,
    top_k: int | None = None,
    limit: int | None = None,
) -> list[Example]:
    """Join BEIR's corpus and queries by a TREC run.

    Each file is plain or gzipped. Only documents that the run names are held in memory. As in trec_eval, passages are
    ordered by score, and by rank if scores are equal. A document without text (BEIR has such) gets its title as its
    text; one without either is skipped, with one warning for all of them (`SkippedRows`).

    Args:
        corpus: JSON lines ``{_id, title, text}``.
        queries: JSON lines ``{_id, text}``.
        run: lines ``qid Q0 docid rank score tag``.
        qrels: judgements in a file for `load_qrels`; they set every passage's `is_gold`, and an unjudged passage is not
            relevant. Also pass the result of `load_qrels` to `retrieval_measures`, which otherwise misses relevant
            documents that the run lacks.
        top_k: keep at most N passages of each query, the best ones.
        limit: keep at most N queries, the first ones.

    Returns:
        One Example per query, in the order in which the run first names the queries.

    Raises:
        InputError: if a line of the run lacks its six columns or names a document twice for a query, the files lack a
            query or document of the run, or a row is invalid; the message names the file and the line.
    """
    check_int("top_k", top_k, optional=True)
    check_int("limit", limit, optional=True)
    hits = dict(list(_read_run(run).items())[:limit])
    hits = {qid: sorted(found, key=lambda hit: (-hit.score, hit.rank))[:top_k] for qid, found in hits.items()}
    questions: dict[str, _Query] = {}
    for place, query in iter_rows(queries, _Query, set(hits)):
        expect(query.id not in questions, place, "each _id once", query.id)
        questions[query.id] = query
    documents: dict[str, Passage] = {}
    blank: list[InputError] = []
    for place, row in iter_rows(corpus, _Document, {hit.document for found in hits.values() for hit in found}):
        expect(row.id not in documents, place, "each _id once", row.id)
        title, text = titled(row.title, row.text)
        if not text.strip():
            blank.append(InputError(f"{place}: expected text or a title, got neither"))
        with located(place):
            documents[row.id] = Passage(text, title, row.id, metadata=row.rest)
    if blank:
        warnings.warn(SkippedRows(corpus, blank), stacklevel=2)
    judged = None if qrels is None else load_qrels(qrels)
    examples = []
    for qid, found in hits.items():
        expect(qid in questions, found[0].place, f"a query of {queries}", qid)
        passages = []
        for hit in found:
            expect(hit.document in documents, hit.place, f"a document of {corpus}", hit.document)
            if not documents[hit.document].text.strip():
                continue
            gold = None if judged is None else judged.get(qid, {}).get(hit.document, 0) > 0
            passages.append(replace(documents[hit.document], score=hit.score, is_gold=gold))
        examples.append(Example(questions[qid].text, passages, id=qid, metadata=questions[qid].rest))
    return examples


@checked
def load_qrels(path: PathLike) -> dict[str, dict[str, int]]:
    """Read relevance judgements, plain or gzipped.

    Args:
        path: lines ``qid docid relevance`` (BEIR, with a header line) or ``qid 0 docid relevance`` (TREC).

    Returns:
        For each query its judged documents and their grades; a grade above 0 is relevant.

    Raises:
        InputError: if a line has other columns, a grade is not an integer, or a document has two grades; the message
            names the line.
    """
    found: dict[str, dict[str, int]] = {}
    for place, columns in _columns(path):
        if place.endswith(", line 1") and columns[-1] == "score":
            continue
        try:
            qid, document, relevance = columns if len(columns) == 3 else (columns[0], *columns[2:])
            grade = int(float(relevance))
            if grade != float(relevance):
                raise ValueError(relevance)
        except (ValueError, OverflowError):
            expected = "expected qid docid relevance or qid 0 docid relevance"
            raise InputError(f"{place}: {expected}, got {' '.join(columns)!r}") from None
        earlier = found.setdefault(qid, {}).setdefault(document, grade)
        expect(grade == earlier, place, f"grade {earlier} as before for document {document!r} of {qid!r}", grade)
    return found


def _read_run(path: PathLike) -> dict[str, list[_Hit]]:
    hits: dict[str, dict[str, _Hit]] = {}
    for place, columns in _columns(path):
        expect(len(columns) == 6, place, "the 6 columns qid Q0 docid rank score tag", columns)
        qid, _, document, rank, score, _ = columns
        try:
            hit = _Hit(document, int(rank), float(score), place)
        except ValueError:
            raise InputError(f"{place}: expected an integer rank and a score, got {rank!r} and {score!r}") from None
        check_number(f"{place}: score", hit.score)
        earlier = hits.setdefault(qid, {}).setdefault(document, hit)
        expect(earlier is hit, place, f"each document of {qid!r} once (see {earlier.place})", document)
    expect(bool(hits), f"{path}", "at least one line qid Q0 docid rank score tag", [])
    return {qid: list(found.values()) for qid, found in hits.items()}


def _columns(path: PathLike) -> Iterator[tuple[str, list[str]]]:
    """Yield the columns of lines that are not blank, with their places for messages."""
    for number, line in lines(path):
        place = f"{path}, line {number}"
        try:
            columns = line.decode("utf-8").split()
        except UnicodeDecodeError:
            raise InputError(f"{place}: expected UTF-8, got {line[:40]!r}") from None
        if columns:
            yield place, columns
