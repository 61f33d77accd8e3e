"""Haystack: components that re-rank documents, or place them for a reader, where Haystack loads serialised ones."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

from fastreader.core.checks import check_int, check_number, check_text, is_missing, rejecting
from fastreader.errors import MissingExtraError
from fastreader.integrations.common import extended, kept_by, named_reader
from fastreader.passages.arrange import arrange, scores_or_last

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.utils import ComponentDevice
except ImportError as error:
    raise MissingExtraError("haystack-ai", "haystack") from error

_FIELDS = (
    "model",
    "top_k",
    "method",
    "instruction",
    "device",
    "dtype",
    "precision",
    "options",
    "score_threshold",
    "meta_fields_to_embed",
    "embedding_separator",
    "attribute",
)


def _score(document: Document) -> float:
    return -math.inf if document.score is None else document.score


def _distinct(documents: list[Document]) -> list[Document]:
    """Return the first document of each id with the largest score, as Haystack's own rankers do."""
    by_id: dict[str, Document] = {}
    for document in documents:
        if document.id not in by_id or _score(document) > _score(by_id[document.id]):
            by_id[document.id] = document
    return list(by_id.values())


@component
class FastreaderRanker:
    """Rank documents by their relevance to the query, by `fastreader.rerank`, with scores in [0, 1].

    Args:
        model, device, dtype, precision: arguments of `Reader.load`, which `warm_up` or the first run calls; `device`
            may also be a `ComponentDevice`.
        top_k: at most this many documents are returned; None returns all.
        method: a method of `fastreader.rerank`; None takes a relevance model's own, else query likelihood.
        instruction: what makes a document relevant, for the methods that take one.
        options: further arguments of `fastreader.rerank`.
        score_threshold: documents of smaller relevance are left out; None keeps all.
        meta_fields_to_embed: keys of `meta` whose values are read before the content. A `title` is always read.
        embedding_separator: joins these values and the content.
        attribute: the reader also answers from the documents that are kept; their `meta` gains the answer and each
            document's share of it, the Shapley value in nats of `fastreader.attribute`.
        reader: a reader to use instead of `model`; it is not serialised.
        cache: a `PassageCache`, so that documents are read once; it is not serialised, and None reads all.

    Raises:
        InputError: if `top_k` is not an integer of at least 1, or `device` names several devices.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        top_k: int | None = 10,
        method: str | None = None,
        instruction: str | None = None,
        device: str | ComponentDevice = "auto",
        dtype: str = "auto",
        precision: str = "fast",
        options: dict[str, Any] | None = None,
        score_threshold: float | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        attribute: bool = False,
        reader: Any = None,
        cache: Any = None,
    ) -> None:
        check_int("top_k", top_k, optional=True)
        check_number("score_threshold", score_threshold, optional=True)
        if isinstance(device, ComponentDevice):
            with rejecting("device: expected one device", ValueError):
                device = device.to_torch_str()
        self.model, self.top_k, self.method, self.instruction = model, top_k, method, instruction
        self.device, self.dtype, self.precision = str(device), dtype, precision
        self.score_threshold, self.embedding_separator = score_threshold, embedding_separator
        self.meta_fields_to_embed = list(meta_fields_to_embed or [])
        self.options, self.attribute = dict(options or {}), attribute
        self.reader, self.cache = reader, cache

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
            documents: those without text come last; of those with the same id one is kept.
            top_k: instead of the component's.
        """
        self.warm_up()
        documents = _distinct(documents)
        passages = [{"text": self._text(d), "id": d.id, "metadata": d.meta} for d in documents]
        limit = self.top_k if top_k is None else top_k
        kept = []
        for result, more in kept_by(self, query, passages, limit):
            own = documents[result.index]
            kept.append(replace(own, score=result.relevance, meta=extended(own.meta, more)))
        return {"documents": kept}

    def _text(self, document: Document) -> str:
        fields = [document.meta.get(name) for name in self.meta_fields_to_embed if name != "title"]
        texts = [*(str(value) for value in fields if not is_missing(value)), document.content or ""]
        return self.embedding_separator.join(text for text in texts if text)

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Run `run` in a thread."""
        return await asyncio.to_thread(self.run, query, documents, top_k)


@component
class FastreaderReorder:
    """Put the best documents where a reader's position bias is largest, by `fastreader.arrange`.

    No reader runs.

    Args:
        bias: the name of a reader that has calibrations, or the file of one.

    Raises:
        InputError: if `bias` is not text.
    """

    def __init__(self, bias: str = "smollm2-135m") -> None:
        check_text("bias", bias)
        self.bias = bias

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return the documents in reading order, by their scores.

        Args:
            documents: those without a score come last; of those with the same id one is kept.

        Raises:
            InputError: if the bias cannot place the documents.
        """
        kept = _distinct(documents)
        scores = scores_or_last("documents", [document.score for document in kept])
        return {"documents": arrange(kept, self.bias, scores)}
