"""Convert what other libraries call a document, a node or a record to passages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, SupportsFloat

from fastreader.core.checks import NOT_LISTS, check_text, expect, given, is_missing, located
from fastreader.data.hits import Hit, as_hit, response_place
from fastreader.data.passage_texts import id_text, split_contents, titled
from fastreader.data.types import Passage

PassageLike = Any
"""A text, a Passage, or another library's document."""

_TEXT = ("text", "contents", "content", "page_content", "segment", "body", "passage")
_ATTRIBUTES = ("page_content", "content", "text", "contents")
_ID = ("id", "_id", "docid", "doc_id", "document_id", "node_id")
_METADATA = ("metadata", "meta")
_PAIR = "a document, or a pair of a document and its score"
_WANTED = f"a text, a Passage, or a mapping or document with {', '.join(_TEXT[:-1])} or {_TEXT[-1]}"


def as_passages(documents: Iterable[Any], *, name: str = "passages", allow_blank: bool = True) -> list[Passage]:
    """Return documents of any library as passages, in their order.

    Args:
        documents: texts, `Passage`s, mappings, LangChain's and Haystack's Documents, LlamaIndex's nodes, hits of
            Elasticsearch, OpenSearch and Qdrant, or pairs (document, score) of these, whose score counts. Scores are
            larger for better documents; a distance has to be negated.
        name: name of the argument, for messages.
        allow_blank: accept documents without any text.

    Raises:
        InputError: if `documents` is not a list, or an item has no text.
    """
    listed = isinstance(documents, Iterable) and not isinstance(documents, NOT_LISTS)
    if not listed:
        place = response_place(documents)
        expect(False, name, f"a list of passages{' (' * bool(place)}{place}{')' * bool(place)}", documents)
    found = []
    for index, item in enumerate(documents):
        passage = Passage(item) if isinstance(item, str) else as_passage(item, name=f"{name}[{index}]")
        if passage.title:
            check_text(f"{name}[{index}]: title", passage.title, empty=True)
        check_text(f"{name}[{index}]: text", passage.text, empty=allow_blank or bool(passage.title.strip()))
        found.append(passage)
    return found


def as_passage(document: Any, *, name: str = "document") -> Passage:
    """Return one document of any library as a passage, with its other values as `metadata`.

    The title is the document's `title` or else its metadata's, and a document without text has its title as its text.
    None, NaN and pandas' NA are missing values. A hit's id and score are the search engine's; its document's own id and
    score are in `metadata`, under the name of the hit's field that holds the document.

    Args:
        document: see `as_passages`.
        name: name of the argument, for messages.

    Raises:
        InputError: if it has no text, or a hit comes without its document.
    """
    if isinstance(document, Passage):
        return document
    if isinstance(document, str):
        return Passage(document)
    if _is_row(document):
        return _of_pair(document, name)
    hit = as_hit(document, name, _TEXT)
    if hit is not None:
        return _of_hit(hit, name)
    if isinstance(document, Mapping):
        return _of_mapping(document, name)
    node = getattr(document, "node", document)  # LlamaIndex: a node, or one with a score
    content = getattr(node, "get_content", None)
    if callable(content):
        text, id, extra = content(), getattr(node, "node_id", None), getattr(node, "metadata", None)
    else:
        held = [getattr(document, key) for key in _ATTRIBUTES if hasattr(document, key)]
        expect(bool(held), name, _WANTED, document)
        text = next((value for value in held if not is_missing(value)), "")  # Haystack's of an image has None
        id = next((value for key in _ID if (value := getattr(document, key, None)) is not None), None)
        extra = next((value for key in _METADATA if (value := getattr(document, key, None)) is not None), None)
    return _made(text, getattr(document, "title", None), id, getattr(document, "score", None), extra, name)


def _is_row(document: Any) -> bool:
    """Return whether a document is a list or a tuple, and not a named tuple with a text."""
    return isinstance(document, (list, tuple)) and not any(hasattr(document, key) for key in _ATTRIBUTES)


def _of_pair(pair: list[Any] | tuple[Any, ...], name: str) -> Passage:
    numbered = len(pair) == 2 and (is_missing(pair[1]) or _is_score(pair[1]))
    expect(numbered and not _is_row(pair[0]), name, _PAIR, pair)
    passage = as_passage(pair[0], name=name)
    return passage if is_missing(pair[1]) else replace(passage, score=_as_score(pair[1], name))


def _of_hit(hit: Hit, name: str) -> Passage:
    """Return a hit's passage, with its document's own id and score one level down."""
    ids = _ID if is_missing(hit.id) else ()
    own = {key: hit.document.get(key) for key in ("score", *("id",) * (not ids))}
    document = {key: value for key, value in hit.document.items() if key not in own}
    passage = _of_mapping(document, f"{name}: {hit.place}", ids)
    id = passage.id if is_missing(hit.id) else id_text(hit.id)
    metadata = {str(key): value for key, value in hit.rest.items()} | passage.metadata
    below = {key: value for key, value in own.items() if not is_missing(value)}
    if below:
        metadata[hit.place] = below | {key: metadata[key] for key in (hit.place,) if key in metadata}
    return replace(passage, id=id, score=_as_score(hit.score, name), metadata=metadata)


def _of_mapping(document: Mapping[Any, Any], name: str, ids: Collection[str] = _ID) -> Passage:
    """Return the passage of a mapping, with the values of all keys that it does not read as metadata."""
    keys = ", ".join(map(str, document)) or "no keys"
    document = {key: value for key, value in document.items() if not is_missing(value)}
    field = next((key for key in _TEXT if key in document), None)
    if field is None and isinstance(document.get("title"), str):
        field, document = "text", {**document, "text": ""}
    field = given(field, f"{name}: expected {_WANTED}, got a mapping with {keys}")
    text, title = document[field], document.get("title")
    if field == "contents" and isinstance(text, str) and not title:  # FlashRAG's, whose first line is the title
        title, text = split_contents(text)
    id_key = next((key for key in ids if key in document), None)
    read = {field, id_key, "title", "score", *_METADATA}
    extra = {key: value for key, value in document.items() if key not in read}
    for key in _METADATA:
        if key in document:
            held = document[key]
            extra |= held if isinstance(held, Mapping) else {key: held}
    return _made(text, title, document.get(id_key), document.get("score"), extra, name)


def _made(text: Any, title: Any, id: Any, score: Any, metadata: Any, name: str) -> Passage:
    expect(isinstance(text, str), f"{name}: text", "a text", text)
    extra = {str(key): value for key, value in metadata.items()} if isinstance(metadata, Mapping) else {}
    if is_missing(title) and isinstance(extra.get("title"), str):
        title = extra.pop("title")
    with located(name):
        title, text = titled("" if is_missing(title) else title, text)
        return Passage(text, title, None if is_missing(id) else id_text(id), _as_score(score, name), metadata=extra)


def _is_score(score: Any) -> bool:
    if isinstance(score, bool) or not isinstance(score, SupportsFloat) or getattr(score, "ndim", False):
        return False
    try:
        float(score)
    except (OverflowError, TypeError, ValueError):  # an integer of 400 digits, NumPy's dates, a signaling NaN
        return False
    return True


def _as_score(score: Any, name: str) -> float | None:
    expect(is_missing(score) or _is_score(score), f"{name}: score", "a number or None", score)
    return None if is_missing(score) or math.isnan(float(score)) else float(score)
