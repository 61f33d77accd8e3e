"""LangChain: a document compressor that re-ranks, and a transformer that places documents for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field

from fastreader.core.checks import expect
from fastreader.errors import MissingExtraError
from fastreader.integrations.common import NOTE, named_reader
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.passages.arrange import Arranger, arrange
from fastreader.passages.ranking import rerank

try:
    from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain") from error


class FastreaderRerank(BaseDocumentCompressor):
    """Keep the documents that are most relevant to the query, by `fastreader.rerank`.

    Documents are copied; ids and metadata stay, and metadata gains `relevance_score` in [0, 1].

    Attributes:
        model, device, dtype, precision: as for `Reader.load`; loaded at the first call.
        reader: a reader to use instead; it is not serialised.
        top_n: at most this many documents are returned; None returns all.
        method: as for `fastreader.rerank`.
        options: further arguments of `fastreader.rerank`.
    """

    model: str = "smollm2-135m"
    device: str = "auto"
    dtype: str = "auto"
    precision: str = "fast"
    reader: Any = Field(default=None, exclude=True, repr=False)
    top_n: int | None = 3
    method: str = "query_likelihood"
    options: dict[str, Any] = Field(default_factory=dict)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        """Return copies of the most relevant documents, the best first."""
        if not documents:
            return []
        reader = self.reader or named_reader(self.model, self.device, self.dtype, self.precision)
        ranking = rerank(reader, query, list(documents), method=self.method, top_n=self.top_n, **self.options)
        kept = []
        for result in ranking:
            own = documents[result.index]
            told = {"relevance_score": result.relevance, **({NOTE: result.note} if result.note else {})}
            kept.append(own.model_copy(update={"metadata": {**own.metadata, **told}}))
        return kept

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        """Run `compress_documents` in a thread."""
        return await asyncio.to_thread(self.compress_documents, documents, query, callbacks)


class FastreaderReorder(BaseDocumentTransformer):
    """Put the best documents where a reader's position bias is largest (`fastreader.arrange`); no reader runs.

    Args:
        bias: as for `fastreader.arrange`: an `Arranger`, a calibration, its file, or the name of a reader.
        score: key of a document's score in its metadata; without it, documents come best first.
    """

    def __init__(self, bias: Arranger | PositionBias | str, score: str = "relevance_score") -> None:
        self.bias, self.score = bias, score

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        """Return the documents in reading order.

        Raises:
            InputError: if only some documents have a score, or the bias cannot place them.
        """
        scores = [document.metadata.get(self.score) for document in documents]
        known = [float(score) for score in scores if score is not None]
        expect(len(known) in (0, len(scores)), "documents", f"{self.score!r} in all metadata or in none", len(known))
        return arrange(list(documents), self.bias, known or [-float(place) for place in range(len(scores))])
