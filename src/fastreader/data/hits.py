"""Recognise the hits of search engines, which hold a document one level down, next to the hit's own id and score."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastreader.core.checks import Structure, expect, is_missing

_SOURCE, _PAYLOAD = "_source", "payload"
_ASKED = {_SOURCE: "_source=True", _PAYLOAD: "with_payload=True"}


@dataclass(frozen=True)
class Hit:
    """A hit of a search engine.

    Attributes:
        place: name of the hit's field that holds the document.
        document: the document's fields.
        id, score: of the hit; None if it has none.
        rest: the hit's other fields.
    """

    place: str
    document: Mapping[Any, Any]
    id: Any
    score: Any
    rest: Mapping[Any, Any] = field(default_factory=dict)


def as_hit(document: Any, name: str, texts: Collection[str]) -> Hit | None:
    """Return a hit of Elasticsearch, OpenSearch or Qdrant, as JSON or as their clients return it, or None.

    Args:
        document: any document.
        name: name of the argument, for messages.
        texts: keys of a document's text; what has one of them, or a title, is a document itself.

    Raises:
        InputError: if a hit comes without its document, as a search can be set to return it.
    """
    if isinstance(document, Mapping):
        if any(not is_missing(document.get(key)) for key in texts) or isinstance(document.get("title"), str):
            return None
        place = next((key for key in _ASKED if key in document), None)
        if place is None and {"_index", "_id"} <= document.keys():
            place = _SOURCE
        if place is None:
            return None
        own = {_SOURCE: ("_id", "_score"), _PAYLOAD: ("id", "score")}[place]
        rest = {key: value for key, value in document.items() if key not in (place, *own) and not is_missing(value)}
        return _found(place, document.get(place), document.get(own[0]), document.get(own[1]), rest, name)
    about, fields = getattr(document, "meta", None), getattr(document, "to_dict", None)
    if callable(fields) and hasattr(about, "to_dict"):  # elasticsearch.dsl: fields are attributes, also one called text
        return _found(_SOURCE, fields(), getattr(about, "id", None), getattr(about, "score", None), {}, name)
    if hasattr(document, _PAYLOAD) and not any(hasattr(document, key) for key in texts):
        held = getattr(document, _PAYLOAD)
        return _found(_PAYLOAD, held, getattr(document, "id", None), getattr(document, "score", None), {}, name)
    return None


def response_place(response: Any) -> str:
    """Return where a search engine's whole response has its hits, for messages, or "" for anything else."""
    if isinstance(response, (Mapping, Structure)) and hasattr(response, "__getitem__"):
        with contextlib.suppress(KeyError, TypeError):  # keys of another response
            if isinstance(response["hits"]["hits"], list):
                return "its hits are in response['hits']['hits']"
    return "its hits are in response.points" if isinstance(getattr(response, "points", None), list) else ""


def _found(place: str, document: Any, id: Any, score: Any, rest: Mapping[Any, Any], name: str) -> Hit:
    expected = f"the fields of the hit's document, which a search returns by {_ASKED[place]}"
    expect(isinstance(document, Mapping), f"{name}: {place}", expected, document)
    return Hit(place, document, id, score, rest)
