"""Evaluating retriever specifications: every expression once a question, each model called once for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.data.types import Example, Passage
from fastreader.eor import spec
from fastreader.eor.chunks import Limits, chunks, cut, cut_all, first_words
from fastreader.eor.plan import PK, Plan, sources_of
from fastreader.eor.rerank import QuestionLikelihood, Scorer, rerank
from fastreader.eor.sources import SourceFunction, as_passage, as_source
from fastreader.eor.spec import Concat, Node, Rerank, Source, Top
from fastreader.eor.texts import Texts
from fastreader.eor.types import Document, Retrieval
from fastreader.errors import FastreaderError, InputError
from fastreader.protocol import ReaderProtocol

logger = logging.getLogger(__name__)

PAPER = (
    "Wiki@10", "SE@1", "SE@4", "PK", "SE@RR@10", "SE@2&Wiki@5", "SE@RR@5&Wiki@5", "HB@RR@10",
    "Wiki@10@CP", "SE@1@CP", "SE@4@CP", "SE@RR@10@CP", "SE@2&Wiki@5@CP", "SE@RR@5&Wiki@5@CP", "HB@RR@10@CP",
)  # fmt: skip
"""The 15 retrievers of the paper; its pool of 16 has ReFree too."""


@dataclass(frozen=True)
class Failure:
    """Why an expression has no passages for a question."""

    reason: str


Found = list[Passage] | Failure


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
        self.limits, self.texts = limits or Limits(), texts or Texts()
        self.max_new_tokens = max_new_tokens
        self._reader = reader
        self._raise = on_error == "raise"
        self._scorer = scorer
        if scorer is None and reader is not None:
            self._scorer = QuestionLikelihood(reader, self.texts)

    def retrieve(self, questions: Sequence[str | Example]) -> list[Retrieval]:
        """The document of every retriever for every question.

        A source is called once a question, the reader at most three times in all: for PK, @RR and @CP; more often
        only where an alias builds one of these on another.

        Args:
            questions: Q texts, or examples, whose right answers and identifiers go along.

        Returns:
            Q results of M documents. Where a source failed, documents made from it have a `failure` instead.

        Raises:
            InputError: an empty question; a scorer that gives no finite number for each passage.
            Exception: what a source raises, with on_error="raise".
        """
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

    def _document(self, name: str, root: Node, i: int, values: dict[Node, list[Found]]) -> Document:
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

    def _evaluate(self, questions: list[str]) -> dict[Node, list[Found]]:
        values: dict[Node, list[Found]] = {}
        waiting = list(self._plan.nodes)
        while waiting:
            ready = [node for node in waiting if all(child in values for child in spec.children(node))]
            costly = [node for node in ready if self._plan.calls_reader(node)]
            if cheap := [node for node in ready if node not in costly]:
                ready = cheap
                values.update({node: self._cheap(node, questions, values) for node in cheap})
            else:
                kind = min(map(_stage, costly))
                ready = [node for node in costly if _stage(node) == kind]
                values.update(_STAGES[kind](self, ready, questions, values))
            waiting = [node for node in waiting if node not in ready]
        return values

    def _cheap(self, node: Node, questions: list[str], values: dict[Node, list[Found]]) -> list[Found]:
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
                out.append([as_passage(item) for item in self._sources[name](question) or ()])
            except Exception as error:
                if self._raise:
                    raise
                out.append(Failure(f"{name} failed: {type(error).__name__}: {error}"))
        failures = [found for found in out if isinstance(found, Failure)]
        if failures:
            logger.warning("%d of %d questions: %s", len(failures), len(out), failures[0].reason)
        return self._noted(name, out)

    def _noted(self, name: str, found: list[Found]) -> list[Found]:
        """Say how often a source returned nothing, or raise."""
        if nothing := sum(passages == [] for passages in found):
            reason = self._failed(f"{name} returned nothing")
            logger.warning("%d of %d questions: %s", nothing, len(found), reason)
        return found

    def _write(
        self, nodes: list[Node], questions: list[str], values: dict[Node, list[Found]]
    ) -> dict[Node, list[Found]]:
        """PK: the reader writes a document for each question."""
        reader = self._needed_reader()
        prompts = [reader.prompt([self.texts.write.format(question=q.strip())]) for q in questions]
        written = reader.generate(prompts, max_new_tokens=self.max_new_tokens)
        texts = [generated[0].text.strip() for generated in written]
        return {nodes[0]: self._noted(PK, [[Passage(text, id=PK)] if text else [] for text in texts])}

    def _rank(
        self, nodes: list[Node], questions: list[str], values: dict[Node, list[Found]]
    ) -> dict[Node, list[Found]]:
        """@RR: chunks of all nodes and questions in one call of the scorer."""
        assert self._scorer is not None
        jobs = []
        out: dict[Node, list[Found]] = {node: list(values[spec.children(node)[0]]) for node in nodes}
        for node, found in out.items():
            jobs += [(node, i, passages) for i, passages in enumerate(found) if not isinstance(passages, Failure)]
        split = [[piece for p in passages for piece in chunks(p, self.limits.chunk)] for _, _, passages in jobs]
        ranked = rerank(self._scorer, [questions[i] for _, i, _ in jobs], split)
        for (node, i, _), passages in zip(jobs, ranked, strict=True):
            out[node][i] = passages
        return out

    def _compress(
        self, nodes: list[Node], questions: list[str], values: dict[Node, list[Found]]
    ) -> dict[Node, list[Found]]:
        """@CP: summaries of all nodes and questions in one generation."""
        reader, texts, limit = self._needed_reader(), self.texts, self.limits.summary
        out: dict[Node, list[Found]] = {node: list(values[spec.children(node)[0]]) for node in nodes}
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
            out[node][i] = [Passage(text, id="CP")] if text else Failure(self._failed("the reader's summary is empty"))
        return out

    def _failed(self, reason: str) -> str:
        if self._raise:
            raise FastreaderError(reason)
        return reason

    def _needed_reader(self) -> ReaderProtocol:
        assert self._reader is not None  # `Plan.check` saw to it
        return self._reader


def _join(parts: Iterable[Found]) -> Found:
    joined: list[Passage] = []
    for part in parts:
        if isinstance(part, Failure):
            return part
        joined += part
    return joined


def _stage(node: Node) -> int:
    return 0 if isinstance(node, Source) else 1 if isinstance(node, Rerank) else 2


_Stage = Callable[[Retrievers, list[Node], list[str], dict[Node, list[Found]]], dict[Node, list[Found]]]
_STAGES: tuple[_Stage, ...] = (Retrievers._write, Retrievers._rank, Retrievers._compress)
