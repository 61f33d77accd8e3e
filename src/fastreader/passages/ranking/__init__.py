"""Passages in order of relevance to a question."""

from fastreader.passages.ranking.rerank import RERANKERS, arerank, rerank
from fastreader.passages.ranking.results import Reranked, RerankResult
from fastreader.passages.ranking.trec import save_trec_run

__all__ = ["RERANKERS", "RerankResult", "Reranked", "arerank", "rerank", "save_trec_run"]
