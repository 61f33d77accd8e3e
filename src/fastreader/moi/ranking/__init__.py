"""Passages in order of relevance to a question."""

from fastreader.moi.ranking.api import RERANKERS, arerank, rerank
from fastreader.moi.ranking.results import Reranked, RerankResult

__all__ = ["RERANKERS", "RerankResult", "Reranked", "arerank", "rerank"]
