"""rerankers: fastreader as one of its rankers, `Reranker(name, model_type="FastreaderRanker")`."""

from __future__ import annotations

import copy
from typing import Any

from fastreader.errors import MissingExtraError
from fastreader.integrations.common import extended, kept_by, named_reader, ranking

try:
    import rerankers.models
    from rerankers.models.ranker import BaseRanker
    from rerankers.results import RankedResults, Result
    from rerankers.utils import prep_docs
except ImportError as error:
    raise MissingExtraError("rerankers", "rerankers") from error


class FastreaderRanker(BaseRanker):
    """A ranker of the rerankers library, with scores in [0, 1].

    Args:
        model_name_or_path: what `Reader.load` loads.
        verbose: taken for the library's sake; nothing is printed.
        reader: a reader to use instead.
        method: a method of `fastreader.rerank`; None takes a relevance model's own, else query likelihood.
        device, dtype, precision: arguments of `Reader.load`.
        attribute: the reader also answers from all documents; their metadata gains the answer and each document's
            share of it, the Shapley value in nats of `fastreader.attribute`.
        cache: a `PassageCache`, so that documents are read once; None reads all.
        options: further arguments of `fastreader.rerank`.
    """

    def __init__(
        self,
        model_name_or_path: str = "smollm2-135m",
        verbose: int = 1,
        *,
        reader: Any = None,
        method: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        precision: str = "fast",
        attribute: bool = False,
        cache: Any = None,
        **options: Any,
    ) -> None:
        self.model_name_or_path, self.verbose, self.method, self.options = model_name_or_path, verbose, method, options
        self.attribute, self.cache = attribute, cache
        self.reader = reader or named_reader(model_name_or_path, device or "auto", dtype or "auto", precision)

    def score(self, query: str, doc: str) -> float:
        """Return the relevance of one document."""
        relevance: float = ranking(self, query, [doc], None)[0].relevance
        return relevance

    def rank(
        self,
        query: str,
        docs: Any,
        doc_ids: list[str] | list[int] | None = None,
        metadata: list[dict[str, Any]] | None = None,
    ) -> RankedResults:
        """Return the documents in order of relevance, in the library's own results."""
        documents = prep_docs(docs, doc_ids, metadata)
        passages = [{"text": d.text or "", "metadata": d.metadata or {}} for d in documents]
        results = []
        for place, (result, more) in enumerate(kept_by(self, query, passages, None), 1):
            own = documents[result.index]
            if self.attribute:
                own = copy.copy(own)
                own.metadata = extended(own.metadata or {}, more)
            results.append(Result(document=own, score=result.relevance, rank=place))
        return RankedResults(results=results, query=query, has_scores=True)


rerankers.models.AVAILABLE_RANKERS.setdefault("FastreaderRanker", FastreaderRanker)
