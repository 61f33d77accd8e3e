"""Haystack: a ranker component, in the only place from which Haystack loads serialised components."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from fastreader.errors import MissingExtraError
from fastreader.integrations.common import named_reader, noted, ranking

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise MissingExtraError("haystack-ai", "haystack") from error

_FIELDS = ("model", "top_k", "method", "device", "dtype", "precision", "options")


@component
class FastreaderRanker:
    """Rank documents by their relevance to the query, by `fastreader.rerank`, with scores in [0, 1].

    Args:
        model, device, dtype, precision: arguments of `Reader.load`, which `warm_up` or the first run calls.
        top_k: at most this many documents are returned; None returns all.
        method: a method of `fastreader.rerank`.
        options: further arguments of `fastreader.rerank`.
        reader: a reader to use instead of `model`; it is not serialised.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        top_k: int | None = 10,
        method: str = "query_likelihood",
        device: str = "auto",
        dtype: str = "auto",
        precision: str = "fast",
        options: dict[str, Any] | None = None,
        reader: Any = None,
    ) -> None:
        self.model, self.top_k, self.method = model, top_k, method
        self.device, self.dtype, self.precision = device, dtype, precision
        self.options = dict(options or {})
        self.reader = reader

    def warm_up(self) -> None:
        """Load the reader, once."""
        if self.reader is None:
            self.reader = named_reader(self.model, self.device, self.dtype, self.precision)

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack serialises it."""
        values: dict[str, Any] = default_to_dict(self, **{name: getattr(self, name) for name in _FIELDS})
        return values

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FastreaderRanker:
        """Return the component that `to_dict` described."""
        made: FastreaderRanker = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Return the documents in order of relevance.

        Args:
            query: the question.
            documents: those without text come last.
            top_k: instead of the component's.
        """
        self.warm_up()
        passages = [{"text": d.content or "", "id": d.id} for d in documents]
        limit = self.top_k if top_k is None else top_k
        kept = []
        for result in ranking(self, query, passages, limit):
            own = documents[result.index]
            kept.append(replace(own, score=result.relevance, meta=noted(own.meta, result.note)))
        return {"documents": kept}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Run `run` in a thread."""
        return await asyncio.to_thread(self.run, query, documents, top_k)
