"""The rankers of all libraries: a reader by name, loaded when it is first needed, and one call of `rerank`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, Field

from fastreader.passages.ranking import rerank

NOTE = "fastreader_note"  # the key of a result's note in metadata


class RankerFields(BaseModel):
    """The fields of rankers that are pydantic models.

    Attributes:
        model, device, dtype, precision: arguments of `Reader.load`, which runs at the first call.
        reader: a reader to use instead; it is not serialised.
        top_n: at most this many documents are returned; None returns all.
        method: a method of `fastreader.rerank`.
        options: further arguments of `fastreader.rerank`.
    """

    model: str = Field(default="smollm2-135m", description="A name or path of a reader.")
    device: str = "auto"
    dtype: str = "auto"
    precision: str = "fast"
    reader: Any = Field(default=None, exclude=True, repr=False)
    top_n: int | None = Field(default=3, description="Number of documents returned.")
    method: str = "query_likelihood"
    options: dict[str, Any] = Field(default_factory=dict)


@lru_cache(maxsize=2)
def named_reader(model: str, device: str, dtype: str, precision: str) -> Any:
    """Return the reader of that name, of which two stay loaded."""
    from fastreader.reader.reader import Reader

    return Reader.load(model, device=device, dtype=dtype, precision=precision)


def ranking(ranker: Any, query: Any, passages: Any, top_n: int | None, **options: Any) -> Any:
    """Return `fastreader.rerank` of passages with a ranker's reader, method and options.

    Args:
        ranker: an object with the attributes of `RankerFields`.
        query, passages, top_n: arguments of `fastreader.rerank`.
        **options: further ones, besides the ranker's own.
    """
    reader = ranker.reader or named_reader(ranker.model, ranker.device, ranker.dtype, ranker.precision)
    return rerank(reader, query, passages, method=ranker.method, top_n=top_n, **options, **ranker.options)


def noted(metadata: dict[str, Any], note: str, **more: Any) -> dict[str, Any]:
    """Return a document's metadata with a result's note, if there is one, and with `more`."""
    return {**metadata, **more, **({NOTE: note} if note else {})}
