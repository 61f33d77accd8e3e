"""rerank: passages by their relevance to the question (`fastreader.rerank`), then one reading, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastreader.data import Example
from fastreader.passages.ranking import Reranked, rerank
from fastreader.reader.programs.requests import Program
from fastreader.reader.prompts.template import Template
from fastreader.study.cached_reader import scoring
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod, check_options
from fastreader.study.methods.reading import read, template_of

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader

_OPTIONS = ("max_new_tokens", "top_n")


@dataclass(frozen=True)
class RerankMethod(StudyMethod):
    """Passages by relevance, then one reading.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: at most this many tokens of the answer.
        top_n: read at most this many passages; None reads all.
    """

    template: Template
    max_new_tokens: int
    top_n: int | None = None

    def program(self, batch: Batch, example: Example) -> Program[Answered]:
        """Return the program for one question; see `StudyMethod.program`."""
        if not example.passages:
            raise NotApplicable("rerank: the question has no passages")
        ranked = yield from scoring("rerank", batch.reader, lambda reader: self._rank(reader, example))
        reply = yield from read(batch, example, ranked.indices, self.template, self.max_new_tokens)
        trace = {"order": ranked.indices, "order_scores": [result.relevance for result in ranked]}
        return Answered(reply.text.strip(), trace, result=ranked)

    def _rank(self, reader: ScoringReader, example: Example) -> Reranked:
        return rerank(reader, example, template=self.template, top_n=self.top_n)


def _make(variant: str, options: dict[str, Any], study: Any) -> RerankMethod:
    check_options("rerank", options, _OPTIONS)
    tokens = options.get("max_new_tokens", study.max_new_tokens)
    return RerankMethod(template_of(study), tokens, options.get("top_n"))


RERANK = Family("rerank", "passages by query likelihood, the best first", lambda: [""], _make, lambda _: _OPTIONS)
