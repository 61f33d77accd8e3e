"""Evaluating retriever specifications: every expression once a question, each model called once for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastreader.core.protocol import ReaderProtocol
from fastreader.data.types import Example, Passage
from fastreader.eor import spec
from fastreader.eor.chunks import Limits, cut, cut_all
from fastreader.eor.plan import Plan, sources_of
from fastreader.eor.rerank import QuestionLikelihood, Scorer
from fastreader.eor.sources import SourceFunction, as_passages, as_source
from fastreader.eor.spec import Concat, Node, Source, Top
from fastreader.eor.stages import Failure, Found, Stages, Values, stage_of
from fastreader.eor.texts import Texts
from fastreader.eor.types import Document, Retrieval
from fastreader.errors import InputError

logger = logging.getLogger(__name__)

PAPER = (
    "Wiki@10", "SE@1", "SE@4", "PK", "SE@RR@10", "SE@2&Wiki@5", "SE@RR@5&Wiki@5", "HB@RR@10",
    "Wiki@10@CP", "SE@1@CP", "SE@4@CP", "SE@RR@10@CP", "SE@2&Wiki@5@CP", "SE@RR@5&Wiki@5@CP", "HB@RR@10@CP",
)  # fmt: skip
"""The 15 retrievers of the paper; its pool of 16 has ReFree too."""


class Retrievers:
    """Retrievers by specification, over sources the caller brings.

    Attributes:
        names: the specifications, as given.
    """

    def __init__(
        self,
        specs: Sequence[str] = (*PAPER, spec.REFREE),
        sources: Mapping[str, Any] | None = None,
        *,
        reader: ReaderProtocol | None = None,
        scorer: Scorer | None = None,
        limits: Limits | None = None,
        texts: Texts | None = None,
        aliases: Mapping[str, str] | None = None,
        on_error: str = "record",
        max_new_tokens: int = 384,
    ) -> None:
        """Parse the specifications and check that all they need is there.

        Args:
            specs: M specifications (`spec.parse`).
            sources: by name, what `as_source` takes. "PK" (a document that the reader writes) and "ReFree" (no
                document) are built in.
            reader: writes PK, summarises for @CP, and ranks for @RR where there is no scorer.
            scorer: for @RR, ``scorer(question, passages) -> numbers``; None: `QuestionLikelihood` of the reader.
            limits: lengths in words; the paper's by default.
            texts: of the prompts.
            aliases: names for expressions; `ALIASES` by default, which defines HB.
            on_error: "record": a source that raises leaves its retrievers without a document for that question,
                and `Document.failure` says why; one that returns nothing does so where the retriever has no other,
                and else `Document.notes` says it. "raise": the first such error is raised.
            max_new_tokens: of a document of PK and of a summary.

        Raises:
            InputError: no specification, one given twice, a source that is missing, no reader where one is needed.
            SpecError: a specification does not parse.
        """
        if on_error not in ("record", "raise"):
            raise InputError(f"on_error: expected 'record' or 'raise', got {on_error!r}")
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
        self._sources: dict[str, SourceFunction] = {name: as_source(s) for name, s in (sources or {}).items()}
        self._plan = Plan(specs, self._sources, aliases)
        self._plan.check(reader=reader is not None, scorer=scorer is not None)
        self.names = self._plan.names
        self.limits, words = limits or Limits(), texts or Texts()
        if scorer is None and reader is not None:
            scorer = QuestionLikelihood(reader, words)
        self._stages = Stages(reader, scorer, self.limits, words, max_new_tokens, on_error == "raise")

    def retrieve(self, questions: Sequence[str | Example]) -> list[Retrieval]:
        """The document of every retriever for every question.

        A source is called once a question, the reader at most three times in all: for PK, @RR and @CP; more often
        only where an alias builds one of these on another.

        Args:
            questions: Q texts, or examples, whose right answers and identifiers go along.

        Returns:
            Q results of M documents. Where a source failed, documents made from it have a `failure` instead.

        Raises:
            InputError: one text in place of a list, or an empty question; a scorer that gives no finite number for
                each passage.
            Exception: what a source raises, with on_error="raise".
        """
        if isinstance(questions, str):
            raise InputError(f"questions: expected a list of questions, got the text {questions[:60]!r}")
        examples = [q if isinstance(q, Example) else Example(q, []) for q in questions]
        asked = [example.question for example in examples]
        for i, question in enumerate(asked):
            if not isinstance(question, str) or not question.strip():
                raise InputError(f"questions[{i}]: expected a text that is not empty, got {question!r}")
        values = self._evaluate(asked)
        return [
            Retrieval(
                question=example.question,
                documents=[
                    self._document(name, root, i, values)
                    for name, root in zip(self.names, self._plan.roots, strict=True)
                ],
                right=example.answers,
                id=example.id,
            )
            for i, example in enumerate(examples)
        ]

    def _document(self, name: str, root: Node, i: int, values: Values) -> Document:
        found = values[root][i]
        if isinstance(found, Failure):
            return Document(name, failure=found.reason)
        if root == Source(spec.REFREE):
            return Document(name)
        nothing = [node.name for node in sources_of(root) if not values[node][i]]
        if not found:
            return Document(name, failure=f"{' and '.join(nothing)} returned nothing")
        notes = [f"{source} returned nothing" for source in nothing]
        return Document(name, cut_all(found, self.limits.document), notes=notes)

    def _evaluate(self, questions: list[str]) -> Values:
        values: Values = {}
        waiting = list(self._plan.nodes)
        while waiting:
            ready = [node for node in waiting if all(child in values for child in spec.children(node))]
            costly = [node for node in ready if self._plan.calls_reader(node)]
            if cheap := [node for node in ready if node not in costly]:
                ready = cheap
                values.update({node: self._cheap(node, questions, values) for node in cheap})
            else:
                first = min(map(stage_of, costly))
                ready = [node for node in costly if stage_of(node) == first]
                values.update(self._stages.run(ready, questions, values))
            waiting = [node for node in waiting if node not in ready]
        return values

    def _cheap(self, node: Node, questions: list[str], values: Values) -> list[Found]:
        if isinstance(node, Source):
            if node.name == spec.REFREE:
                return [[] for _ in questions]
            return self._ask(node.name, questions)
        if isinstance(node, Top):
            return [self._top(node, found) for found in values[node.inner]]
        assert isinstance(node, Concat)
        rows = zip(*(values[part] for part in node.parts), strict=True)
        return [_join(row) for row in rows]

    def _top(self, node: Top, found: Found) -> Found:
        if isinstance(found, Failure) or not isinstance(node.inner, Source):
            return found if isinstance(found, Failure) else found[: node.k]  # ranked chunks have their length
        words = self.limits.single if node.k == 1 else self.limits.page
        return [cut(passage, words) for passage in found[: node.k]]

    def _ask(self, name: str, questions: list[str]) -> list[Found]:
        """Call a source for each question."""
        out: list[Found] = []
        for question in questions:
            try:
                out.append(as_passages(self._sources[name](question)))
            except Exception as error:
                if self._stages.strict:
                    raise
                out.append(Failure(f"{name} failed: {type(error).__name__}: {error}"))
        failures = [found for found in out if isinstance(found, Failure)]
        if failures:
            logger.warning("%d of %d questions: %s", len(failures), len(out), failures[0].reason)
        return self._stages.noted(name, out)


def _join(parts: Iterable[Found]) -> Found:
    joined: list[Passage] = []
    for part in parts:
        if isinstance(part, Failure):
            return part
        joined += part
    return joined
