"""Passages in order of relevance to a question."""

from fastreader.moi.ranking.api import RERANKERS, arerank, rerank
from fastreader.moi.ranking.results import Reranked, RerankResult
from fastreader.moi.ranking.trec import save_trec_run

__all__ = ["RERANKERS", "RerankResult", "Reranked", "arerank", "rerank", "save_trec_run"]
