"""rerank: passages by their relevance to the question (`fastreader.rerank`), then one reading, the best first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastreader.data import Example
from fastreader.passages.ranking import rerank
from fastreader.reader.programs.requests import Program
from fastreader.study.cached_reader import scoring
from fastreader.study.method import Answered, Batch, Family, check_options
from fastreader.study.methods.reading import TemplateMethod

_OPTIONS = ("max_new_tokens", "top_n")


@dataclass(frozen=True)
class RerankMethod(TemplateMethod):
    """Passages by relevance, then one reading.

    Attributes:
        top_n: read at most this many passages; None reads all.
    """

    reads = "rerank"
    top_n: int | None = None

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        ranked = yield from scoring(
            "rerank", batch.reader, lambda reader: rerank(reader, example, template=self.template, top_n=self.top_n)
        )
        scores = [result.relevance for result in ranked]
        answered = yield from self._read(batch, example, ranked.indices, order_scores=scores)
        return replace(answered, result=ranked)


def _make(variant: str, options: dict[str, Any], study: Any) -> RerankMethod:
    check_options("rerank", options, _OPTIONS)
    return RerankMethod.of(study, options)


RERANK = Family("rerank", "passages by query likelihood, the best first", _make, lambda _: _OPTIONS)
