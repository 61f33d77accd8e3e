"""Stages: the calls of reader and scorer, each made once for all the expressions that need it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fastreader.core.protocol import ReaderProtocol
from fastreader.data.types import Passage
from fastreader.eor import spec
from fastreader.eor.chunks import Limits, chunks, cut_all, first_words
from fastreader.eor.plan import PK
from fastreader.eor.rerank import Scorer, rerank
from fastreader.eor.spec import Node, Rerank, Source
from fastreader.eor.texts import Texts
from fastreader.errors import FastreaderError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why an expression has no passages for a question."""

    reason: str


Found = list[Passage] | Failure
Values = dict[Node, list[Found]]
"""What each expression found, by question."""


def stage_of(node: Node) -> int:
    """Which call a node takes: 0 writes PK, 1 ranks, 2 compresses."""
    return 0 if isinstance(node, Source) else 1 if isinstance(node, Rerank) else 2


@dataclass(frozen=True)
class Stages:
    """What makes the calls.

    Attributes:
        reader: writes and summarises.
        scorer: ranks.
        limits: lengths in words.
        texts: of the prompts.
        max_new_tokens: of a document of PK and of a summary.
        strict: raise where something is not there, in place of a `Failure`.
    """

    reader: ReaderProtocol | None
    scorer: Scorer | None
    limits: Limits
    texts: Texts
    max_new_tokens: int
    strict: bool

    def run(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """The values of nodes of one stage; those of their children are there."""
        return (self.write, self.rank, self.compress)[stage_of(nodes[0])](nodes, questions, values)

    def write(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """PK: the reader writes a document for each question."""
        reader = self._needed()
        prompts = [reader.prompt([self.texts.write.format(question=q.strip())]) for q in questions]
        written = reader.generate(prompts, max_new_tokens=self.max_new_tokens)
        texts = [generated[0].text.strip() for generated in written]
        return {nodes[0]: self.noted(PK, [[Passage(text, id=PK)] if text else [] for text in texts])}

    def rank(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """@RR: chunks of all nodes and questions in one call of the scorer."""
        assert self.scorer is not None
        jobs = []
        out: Values = {node: list(values[spec.children(node)[0]]) for node in nodes}
        for node, found in out.items():
            jobs += [(node, i, passages) for i, passages in enumerate(found) if not isinstance(passages, Failure)]
        split = [[piece for p in passages for piece in chunks(p, self.limits.chunk)] for _, _, passages in jobs]
        ranked = rerank(self.scorer, [questions[i] for _, i, _ in jobs], split)
        for (node, i, _), passages in zip(jobs, ranked, strict=True):
            out[node][i] = passages
        return out

    def compress(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """@CP: summaries of all nodes and questions in one generation."""
        reader, texts, limit = self._needed(), self.texts, self.limits.summary
        out: Values = {node: list(values[spec.children(node)[0]]) for node in nodes}
        jobs, prompts = [], []
        for node, rows in out.items():
            for i, found in enumerate(rows):
                if isinstance(found, Failure) or not found:
                    continue
                query = texts.compress_query.format(question=questions[i].strip(), words=limit)
                pieces = [texts.of(p) for p in cut_all(found, self.limits.document)]
                jobs.append((node, i))
                prompts.append(reader.prompt([query, *pieces, texts.compress_end]))
        written = reader.generate(prompts, max_new_tokens=self.max_new_tokens) if prompts else []
        for (node, i), generated in zip(jobs, written, strict=True):
            text = first_words(generated[0].text.strip(), limit)
            out[node][i] = [Passage(text, id="CP")] if text else Failure(self.failed("the reader's summary is empty"))
        return out

    def noted(self, name: str, found: list[Found]) -> list[Found]:
        """Say how often a source returned nothing, or raise."""
        if nothing := sum(passages == [] for passages in found):
            reason = self.failed(f"{name} returned nothing")
            logger.warning("%d of %d questions: %s", nothing, len(found), reason)
        return found

    def failed(self, reason: str) -> str:
        """The reason, or an error where these are raised."""
        if self.strict:
            raise FastreaderError(reason)
        return reason

    def _needed(self) -> ReaderProtocol:
        assert self.reader is not None  # `Plan.check` saw to it
        return self.reader
