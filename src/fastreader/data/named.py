"""Load the rows of data sets by name, with the libraries `datasets` and `ir_datasets`."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastreader.core.checks import expect, require
from fastreader.errors import InputError, MissingExtraError

DATASETS, IR_DATASETS = "datasets:", "ir_datasets:"


def is_named(path: str | os.PathLike[str], folder: Path = Path()) -> bool:
    """Return whether a text is the name of a data set, and no existing path, relative to `folder`."""
    text = os.fspath(path)
    return text.startswith((DATASETS, IR_DATASETS)) and not (folder / text).exists()


def named_rows(name: str) -> Iterable[Any]:
    """Load the rows of a data set.

    Args:
        name: ``datasets:NAME``, ``datasets:NAME/CONFIG``, each also with ``:SPLIT``, or ``ir_datasets:NAME``. NAME is
            OWNER/NAME or NAME on the hub, or a local folder, which has no CONFIG. An `ir_datasets` name gives its
            queries, with the documents of its scoreddocs as passages, gold if the qrels say so.

    Returns:
        A `datasets.Dataset`, or an iterator over rows of DPR's format.

    Raises:
        InputError: if the library does not know or cannot load the data set, several splits exist and none is named,
            or a data set of `ir_datasets` has neither scoreddocs nor answers.
        MissingExtraError: if the library is not installed.
    """
    if name.startswith(DATASETS):
        return _datasets_rows(name)
    return _ir_datasets_rows(name)


def _datasets_rows(name: str) -> Iterable[Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "datasets") from error
    where, _, split = name.removeprefix(DATASETS).partition(":")
    parts = [where] if where and Path(where).is_dir() else where.split("/")
    fits = all(parts) and len(parts) <= 3
    expect(fits, "path", f"{DATASETS}OWNER/NAME, with /CONFIG and :SPLIT if need be, or an existing folder", name)
    with _loading(name, datasets.exceptions.DatasetsError):
        found = datasets.load_dataset("/".join(parts[:2]), *parts[2:], split=split or None)
    splits: dict[str, Iterable[Any]] = found if isinstance(found, dict) else {split: found}
    require(len(splits) == 1, f"{name}: expected one of the splits {', '.join(splits)} after a colon, got none")
    return next(iter(splits.values()))


def _ir_datasets_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the queries in the order of the library, with their best documents first.

    All scoreddocs and qrels are held in memory, the documents of one query at a time.
    """
    try:
        import ir_datasets
    except ImportError as error:
        raise MissingExtraError("ir_datasets", "ir-datasets") from error
    with _loading(name, KeyError):
        found = ir_datasets.load(name.removeprefix(IR_DATASETS))
    scored = found.has_scoreddocs() and found.has_docs()
    usable = found.has_queries() and (scored or "answers" in found.queries_cls()._fields)
    expect(usable, name, "queries with scoreddocs or with answers; load_beir joins queries with a run", found)
    hits: dict[str, dict[str, float]] = defaultdict(dict)
    grades: dict[str, dict[str, int]] | None = None
    with _loading(name):
        if scored:
            documents = found.docs_store()
            for hit in found.scoreddocs_iter():
                hits[hit.query_id][hit.doc_id] = hit.score
        if scored and found.has_qrels():
            grades = defaultdict(dict)
            for judged in found.qrels_iter():
                grades[judged.query_id][judged.doc_id] = judged.relevance
        queries = iter(found.queries_iter())
    while True:
        with _loading(name):
            query = next(queries, None)
        if query is None:
            return
        row = {"id": query.query_id, "question": query.default_text(), "answers": getattr(query, "answers", ())}
        best = sorted(hits.get(query.query_id, {}).items(), key=lambda hit: -hit[1])
        with _loading(name):
            texts = documents.get_many([document for document, _ in best]) if best else {}
        for document, _ in best:
            expect(
                document in texts, f"{name}: scoreddocs of {query.query_id!r}", "documents of the data set", document
            )
        row["ctxs"] = [
            {
                **_passage(texts[document]),
                "score": score,
                "isgold": None if grades is None else grades[query.query_id].get(document, 0) > 0,
            }
            for document, score in best
        ]
        yield row


def _passage(document: Any) -> dict[str, str]:
    """Return the title and text of a document, whose class depends on the data set."""
    text = next((text for key in ("text", "body") if (text := getattr(document, key, None)) is not None), None)
    if text is None:
        return {"id": document.doc_id, "text": document.default_text()}
    return {"id": document.doc_id, "title": getattr(document, "title", None) or "", "text": text}


@contextlib.contextmanager
def _loading(name: str, *others: type[Exception]) -> Iterator[None]:
    """Raise InputError with the name of the data set if a library raises what it raises for what it cannot load."""
    errors: tuple[type[Exception], ...] = (ImportError, OSError, RuntimeError, ValueError, *others)
    try:
        yield
    except errors as error:
        raise InputError(f"{name}: {name.partition(':')[0]} cannot load it: {error}") from error
