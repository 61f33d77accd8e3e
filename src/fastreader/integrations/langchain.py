"""LangChain: a document compressor that re-ranks, and a transformer that places documents for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict

from fastreader.errors import MissingExtraError
from fastreader.integrations.common import RankerFields, extended, kept_by
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.passages.arrange import Arranger, arrange, scores_or_last

try:
    from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain") from error


class FastreaderRerank(RankerFields, BaseDocumentCompressor):
    """Keep the documents that are most relevant to the query, by `fastreader.rerank`.

    Documents are copied; ids and metadata stay, and metadata gains `relevance_score` in [0, 1]. The fields are
    documented in `RankerFields`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        """Return copies of the most relevant documents, the best first."""
        if not documents:
            return []
        kept = []
        for result, more in kept_by(self, query, list(documents), self.top_n):
            own = documents[result.index]
            metadata = extended(own.metadata, {"relevance_score": result.relevance, **more})
            kept.append(own.model_copy(update={"metadata": metadata}))
        return kept


class FastreaderReorder(BaseDocumentTransformer):
    """Put the best documents where a reader's position bias is largest, by `fastreader.arrange`.

    No reader runs.

    Args:
        bias: an `Arranger`, a calibration, its file, or the name of a reader.
        score: key of a document's score in its metadata; documents without one come last, in their order.
    """

    def __init__(self, bias: Arranger | PositionBias | str, score: str = "relevance_score") -> None:
        self.bias, self.score = bias, score

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        """Return the documents in reading order.

        Raises:
            InputError: if a score is no number, or the bias cannot place the documents.
        """
        scores = scores_or_last("documents", [document.metadata.get(self.score) for document in documents])
        return arrange(list(documents), self.bias, scores)
