"""The rankers of all libraries: a reader by name, loaded when it is first needed, and one call of `rerank`."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, Field

from fastreader.core.checks import expect
from fastreader.data.types import Example, Passage
from fastreader.passages.attribution import attribute
from fastreader.passages.ranking import RerankResult, rerank
from fastreader.scoring.reading import read

# The keys of metadata: a result's note, the answer from all documents, and a document's share of it in nats.
NOTE, ANSWER, ATTRIBUTION = "fastreader_note", "fastreader_answer", "fastreader_attribution"
NO_ANSWER = "no attribution: the reader generated an empty answer from these documents"


class RankerFields(BaseModel):
    """The fields of rankers that are pydantic models.

    Attributes:
        model, device, dtype, precision: arguments of `Reader.load`, which runs at the first call.
        reader: a reader to use instead; it is not serialised.
        cache: a `PassageCache`, so that documents are read once; it is not serialised, and None reads all.
        top_n: at most this many documents are returned; None returns all.
        method: a method of `fastreader.rerank`; None takes a relevance model's own, else query likelihood.
        instruction: what makes a document relevant, for the methods that take one.
        options: further arguments of `fastreader.rerank`.
        score_threshold: documents of smaller relevance are left out; None keeps all.
        attribute: the reader also answers from the documents that are kept; their metadata gains the answer and each
            document's share of it, the Shapley value in nats of `fastreader.attribute`.
    """

    model: str = Field(default="smollm2-135m", description="A name or path of a reader.")
    device: str = "auto"
    dtype: str = "auto"
    precision: str = "fast"
    reader: Any = Field(default=None, exclude=True, repr=False)
    cache: Any = Field(default=None, exclude=True, repr=False)
    top_n: int | None = Field(default=3, description="Number of documents returned.")
    method: str | None = None
    instruction: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    score_threshold: float | None = None
    attribute: bool = False


_locks: dict[tuple[str, ...], threading.Lock] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.clear)  # a thread that holds one is not in the child


def named_reader(model: str, device: str, dtype: str, precision: str) -> Any:
    """Return the reader of that name, of which two stay loaded, and load it once for calls at the same time."""
    key = (str(model), str(device), str(dtype), str(precision))
    with _locks.setdefault(key, threading.Lock()):
        return _loaded(*key)


@lru_cache(maxsize=2)
def _loaded(model: str, device: str, dtype: str, precision: str) -> Any:
    from fastreader.reader.reader import Reader

    return Reader.load(model, device=device, dtype=dtype, precision=precision)


def reader_of(ranker: Any) -> Any:
    """Return the reader that a ranker was given, or the one that it names."""
    return ranker.reader or named_reader(ranker.model, ranker.device, ranker.dtype, ranker.precision)


def ranking(ranker: Any, query: Any, passages: Any, top_n: int | None, **options: Any) -> Any:
    """Return `fastreader.rerank` of passages with a ranker's reader, cache, method and options.

    Args:
        ranker: an object with the attributes of `RankerFields`.
        query, passages, top_n: arguments of `fastreader.rerank`.
        **options: further ones, besides the ranker's own.
    """
    instruction = getattr(ranker, "instruction", None)
    how: dict[str, Any] = {"method": ranker.method, "top_n": top_n, "cache": ranker.cache, **options, **ranker.options}
    return rerank(reader_of(ranker), query, passages, **({"instruction": instruction} if instruction else {}), **how)


def kept_by(ranker: Any, query: Any, passages: Any, top_n: int | None) -> list[tuple[RerankResult, dict[str, Any]]]:
    """Return the results that a ranker keeps, the best first, each with what its document's metadata gains.

    Args:
        ranker: an object with the attributes of `RankerFields`; without a `score_threshold`, all results are kept.
        query, passages, top_n: arguments of `fastreader.rerank`.
    """
    threshold = getattr(ranker, "score_threshold", None)
    ranked = ranking(ranker, query, passages, top_n)
    kept = [result for result in ranked if threshold is None or result.relevance >= threshold]
    shares = _shares(ranker, query, [result.passage for result in kept])
    return [
        (result, {**share, **({NOTE: note} if (note := "; ".join(filter(None, (result.note, also)))) else {})})
        for result, (share, also) in zip(kept, shares, strict=True)
    ]


def _shares(ranker: Any, query: str, passages: Sequence[Passage]) -> list[tuple[dict[str, Any], str]]:
    """Return the answer and each document's share of it in nats, with a note.

    Documents without text get none, and no document does unless the ranker attributes. The reader answers from the
    documents in the order of their relevance.
    """
    found: list[tuple[dict[str, Any], str]] = [({}, "") for _ in passages]
    full = [i for i, passage in enumerate(passages) if passage.text.strip() or passage.title.strip()]
    if not ranker.attribute or not full:
        return found
    reader = reader_of(ranker)
    writes = not getattr(reader, "is_reranker", False)
    expect(
        writes, "attribute", "a reader that answers, or False with a relevance model", getattr(reader, "name", reader)
    )
    example = Example(query, [passages[i] for i in full])
    answer = read(reader, example, candidates=[], on_overflow="truncate").text
    if not answer:
        return [({}, NO_ANSWER) if i in full else one for i, one in enumerate(found)]
    shared = attribute(reader, example, answer=answer, on_overflow="truncate", cache=ranker.cache)
    for i, share in zip(full, shared.shapley.tolist(), strict=True):
        found[i] = {ANSWER: answer, ATTRIBUTION: share}, shared.note
    return found


def extended(metadata: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy of a document's metadata with further keys."""
    return {**copy.deepcopy(metadata), **more}
