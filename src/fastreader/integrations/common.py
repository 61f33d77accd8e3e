"""The rankers of all libraries: a reader by name, loaded when it is first needed, and one call of `rerank`."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, Field

from fastreader.passages.ranking import RerankResult, rerank

NOTE = "fastreader_note"  # the key of a result's note in metadata


class RankerFields(BaseModel):
    """The fields of rankers that are pydantic models.

    Attributes:
        model, device, dtype, precision: arguments of `Reader.load`, which runs at the first call.
        reader: a reader to use instead; it is not serialised.
        top_n: at most this many documents are returned; None returns all.
        method: a method of `fastreader.rerank`; None takes a relevance model's own, else query likelihood.
        instruction: what makes a document relevant, for the methods that take one.
        options: further arguments of `fastreader.rerank`.
        score_threshold: documents of smaller relevance are left out; None keeps all.
    """

    model: str = Field(default="smollm2-135m", description="A name or path of a reader.")
    device: str = "auto"
    dtype: str = "auto"
    precision: str = "fast"
    reader: Any = Field(default=None, exclude=True, repr=False)
    top_n: int | None = Field(default=3, description="Number of documents returned.")
    method: str | None = None
    instruction: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    score_threshold: float | None = None


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
    """Return `fastreader.rerank` of passages with a ranker's reader, method and options.

    Args:
        ranker: an object with the attributes of `RankerFields`.
        query, passages, top_n: arguments of `fastreader.rerank`.
        **options: further ones, besides the ranker's own.
    """
    instruction = getattr(ranker, "instruction", None)
    how: dict[str, Any] = {"method": ranker.method, "top_n": top_n, **options, **ranker.options}
    return rerank(reader_of(ranker), query, passages, **({"instruction": instruction} if instruction else {}), **how)


def above(results: Iterable[RerankResult], threshold: float | None) -> list[RerankResult]:
    """Return the results whose relevance is at least `threshold`, or all for None."""
    return [result for result in results if threshold is None or result.relevance >= threshold]


def noted(metadata: dict[str, Any], note: str, **more: Any) -> dict[str, Any]:
    """Return a deep copy of a document's metadata with a result's note, if there is one, and with `more`."""
    return {**copy.deepcopy(metadata), **more, **({NOTE: note} if note else {})}
