"""Evaluate retriever specifications, each expression once per question, each model call once for all questions."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, check_text, expect
from fastreader.core.protocol import ReaderProtocol
from fastreader.data.documents import as_passages
from fastreader.data.merged import merged
from fastreader.data.types import Example, Passage
from fastreader.eor import spec
from fastreader.eor.rerank import QuestionLikelihood, Scorer, rerank
from fastreader.eor.sources import SourceFunction, as_source
from fastreader.eor.spec import PK, ChunkRerank, Concat, Expressions, Fuse, Node, Source, Top, sources_of
from fastreader.eor.texts import Texts
from fastreader.eor.types import Document, Retrieval
from fastreader.errors import FastreaderError


@checked
@dataclass(frozen=True)
class Limits:
    """The paper's limits, in words, and one that only its code has: `document`.

    Attributes:
        page: length of each of the first k documents of a source (``SE@4``), title included.
        single: length of the document of ``@1``, title included.
        chunk: approximate length of the chunks of @RR.
        document: total length of a retriever's passages, titles included; 0 for no limit.
        summary: length of a summary of @CP.
    """

    page: int = 250
    single: int = 1000
    chunk: int = 100
    document: int = 1000
    summary: int = 200

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            least = 0 if item.name == "document" else 1
            check_int(f"Limits.{item.name}", getattr(self, item.name), least, json_value=True)


def first_words(text: str, count: int) -> str:
    """Return the first `count` words of `text`, or all if it has fewer, with their spacing."""
    parts = text.split(maxsplit=count)
    if len(parts) <= count:
        return text
    return text[: len(text) - len(parts[count])].rstrip()


def cut(passage: Passage, count: int) -> Passage:
    """Return `passage` cut to `count` words, title included, with at least one word of the text."""
    text = first_words(passage.text, max(count - len(passage.title.split()), 1))
    return passage if text == passage.text else replace(passage, text=text)


def chunks(passage: Passage, words: int) -> list[Passage]:
    """Split `passage` into pieces of equal length, near `words` words each, with its title and id.

    The metadata of a piece have its index as "chunk"; a passage that stays whole is returned unchanged.
    """
    found = passage.text.split()
    count = max(round(len(found) / words), 1)
    if count == 1:
        return [passage]
    edges = [round(i * len(found) / count) for i in range(count + 1)]
    return [
        replace(passage, text=" ".join(found[a:b]), score=None, metadata={**passage.metadata, "chunk": i})
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]


def cut_all(passages: Sequence[Passage], count: int) -> list[Passage]:
    """Return `passages` up to `count` words in all, cutting the one that crosses the limit and dropping those after it.

    The text of the first passage keeps at least one word, so that something is left. A `count` of 0 keeps all.
    """
    if not count:
        return list(passages)
    kept: list[Passage] = []
    left = count
    for passage in passages:
        if kept and left <= len(passage.title.split()):
            break
        kept.append(cut(passage, left))
        left -= len(passage.title.split()) + len(passage.text.split())
        if left <= 0:
            break
    return kept


logger = logging.getLogger(__name__)

PAPER = (
    "Wiki@10", "SE@1", "SE@4", "PK", "SE@RR@10", "SE@2&Wiki@5", "SE@RR@5&Wiki@5", "HB@RR@10",
    "Wiki@10@CP", "SE@1@CP", "SE@4@CP", "SE@RR@10@CP", "SE@2&Wiki@5@CP", "SE@RR@5&Wiki@5@CP", "HB@RR@10@CP",
)  # fmt: skip
"""The 15 retrievers of the paper; its pool of 16 also has ReFree."""


@dataclass(frozen=True)
class Failure:
    """Why an expression has no passages for a question."""

    reason: str


Found = list[Passage] | Failure
Values = dict[Node, list[Found]]
"""The passages of each expression, by question."""


@checked
class Retrievers:
    """Retrievers by specification, over sources of the caller.

    Attributes:
        names: the specifications, as given.
        limits: lengths in words.
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
        """Parse the specifications and check that every source and model is available.

        Args:
            specs: M specifications (`spec.parse`).
            sources: anything that `as_source` accepts, by name. "PK" (a document that the reader generates) and
                "ReFree" (no document) are built in.
            reader: model that generates PK, summarises for @CP, and ranks for @RR if there is no scorer.
            scorer: ``scorer(question, passages) -> numbers`` for @RR; None uses `QuestionLikelihood` of the reader.
            limits: lengths in words; the paper's by default.
            texts: texts of the prompts; None uses the default `Texts`.
            aliases: names for expressions; `ALIASES` by default, which defines HB.
            on_error: "record": if a source raises, its retrievers have no document for that question, and
                `Document.failure` gives the reason. The same holds if a source returns nothing and the retriever has
                no other source; otherwise `Document.notes` records it. "raise": raise the first such error.
            max_new_tokens: maximum length of a document of PK and of a summary, in tokens.

        Raises:
            InputError: if there is no specification, one is given twice, or a source or a needed reader is missing.
            SpecError: if a specification does not parse.
        """
        check_choice("on_error", on_error, ("record", "raise"))
        check_int("max_new_tokens", max_new_tokens)
        self._sources: dict[str, SourceFunction] = {name: as_source(s) for name, s in (sources or {}).items()}
        available = {"reader": reader is not None, "scorer": scorer is not None}
        self._plan = Expressions(specs, self._sources, aliases, **available)
        self.names, self.limits = self._plan.names, limits or Limits()
        self._reader, self._texts = reader, texts or Texts()
        if scorer is None and reader is not None:
            scorer = QuestionLikelihood(reader, self._texts)
        self._scorer, self._strict, self._max_new_tokens = scorer, on_error == "raise", max_new_tokens

    def retrieve(self, questions: Sequence[str | Example]) -> list[Retrieval]:
        """Return the documents of all retrievers for each question.

        A source is called once per question, the reader at most three times in all: for PK, @RR and @CP; more often
        only if an alias builds one of these on another.

        Args:
            questions: Q texts, or examples, whose right answers and identifiers are passed on.

        Returns:
            Q results of M documents. If a source failed, documents made from it have a `failure` instead.

        Raises:
            InputError: if `questions` is one text or a question is empty, or if a scorer does not return one finite
                number per passage.
            Exception: any error of a source, with on_error="raise".
        """
        expect(not isinstance(questions, str), "questions", "a list of questions", questions)
        examples = [q if isinstance(q, Example) else Example(q, []) for q in questions]
        for i, example in enumerate(examples):
            check_text(f"questions[{i}]", example.question)
        values = self._evaluate([example.question for example in examples])
        roots = list(zip(self.names, self._plan.roots, strict=True))
        return [
            Retrieval(
                question=example.question,
                documents=[self._document(name, root, i, values) for name, root in roots],
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
        """Evaluate all expressions: those without a model as early as possible, the others one stage at a time."""
        values: Values = {}
        waiting = list(self._plan.nodes)
        while waiting:
            ready = [node for node in waiting if all(child in values for child in spec.children(node))]
            if cheap := [node for node in ready if not self._plan.calls_model(node)]:
                ready = cheap
                values.update({node: self._without_model(node, questions, values) for node in cheap})
            else:
                stage = min(map(_stage, ready))
                ready = [node for node in ready if _stage(node) == stage]
                values.update((self._write, self._rank, self._compress)[stage](ready, questions, values))
            waiting = [node for node in waiting if node not in ready]
        return values

    def _without_model(self, node: Node, questions: list[str], values: Values) -> list[Found]:
        if isinstance(node, Source):
            return [[] for _ in questions] if node.name == spec.REFREE else self._call(node.name, questions)
        if isinstance(node, Top):
            return [self._top(node, found) for found in values[node.inner]]
        assert isinstance(node, (Concat, Fuse))
        merge = _join if isinstance(node, Concat) else partial(merged, by_id=False)  # sources number as they like
        return [_merged(row, merge) for row in zip(*(values[part] for part in node.parts), strict=True)]

    def _top(self, node: Top, found: Found) -> Found:
        if isinstance(found, Failure) or not isinstance(node.inner, (Source, Fuse)):
            return found if isinstance(found, Failure) else found[: node.k]  # ranked chunks have their length
        words = self.limits.single if node.k == 1 else self.limits.page
        return [cut(passage, words) for passage in found[: node.k]]

    def _call(self, name: str, questions: list[str]) -> list[Found]:
        """Call a source for each question."""
        out: list[Found] = []
        for question in questions:
            try:
                found = self._sources[name](question)
                out.append([] if found is None else as_passages(found, name="source", allow_blank=False))
            except Exception as error:
                if self._strict:
                    raise
                out.append(Failure(f"{name} failed: {type(error).__name__}: {error}"))
        if failures := [found for found in out if isinstance(found, Failure)]:
            logger.warning("%d of %d questions: %s", len(failures), len(out), failures[0].reason)
        return self._report_empty(name, out)

    def _write(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """Generate a document for each question (PK)."""
        reader = self._needed()
        prompts = [reader.prompt([self._texts.write.format(question=q.strip())]) for q in questions]
        written = reader.generate(prompts, max_new_tokens=self._max_new_tokens)
        texts = [generated[0].text.strip() for generated in written]
        return {nodes[0]: self._report_empty(PK, [[Passage(text, id=PK)] if text else [] for text in texts])}

    def _rank(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """Rank the chunks of all nodes and questions in one call of the scorer (@RR)."""
        assert self._scorer is not None
        out: Values = {node: list(values[spec.children(node)[0]]) for node in nodes}
        jobs = [
            (rows, i, found) for rows in out.values() for i, found in enumerate(rows) if not isinstance(found, Failure)
        ]
        split = [[piece for p in passages for piece in chunks(p, self.limits.chunk)] for _, _, passages in jobs]
        ranked = rerank(self._scorer, [questions[i] for _, i, _ in jobs], split)
        for (rows, i, _), passages in zip(jobs, ranked, strict=True):
            rows[i] = passages
        return out

    def _compress(self, nodes: list[Node], questions: list[str], values: Values) -> Values:
        """Generate the summaries of all nodes and questions in one call (@CP)."""
        reader, texts, limit = self._needed(), self._texts, self.limits.summary
        out: Values = {node: list(values[spec.children(node)[0]]) for node in nodes}
        jobs, prompts = [], []
        for rows in out.values():
            for i, found in enumerate(rows):
                if isinstance(found, Failure) or not found:
                    continue
                query = texts.compress_query.format(question=questions[i].strip(), words=limit)
                pieces = [texts.of(p) for p in cut_all(found, self.limits.document)]
                jobs.append((rows, i))
                prompts.append(reader.prompt([query, *pieces, texts.compress_end]))
        written = reader.generate(prompts, max_new_tokens=self._max_new_tokens) if prompts else []
        for (rows, i), generated in zip(jobs, written, strict=True):
            text = first_words(generated[0].text.strip(), limit)
            rows[i] = [Passage(text, id="CP")] if text else Failure(self._failed("the reader's summary is empty"))
        return out

    def _report_empty(self, name: str, found: list[Found]) -> list[Found]:
        """Log how often a source returned nothing, or raise."""
        if nothing := sum(passages == [] for passages in found):
            reason = self._failed(f"{name} returned nothing")
            logger.warning("%d of %d questions: %s", nothing, len(found), reason)
        return found

    def _failed(self, reason: str) -> str:
        if self._strict:
            raise FastreaderError(reason)
        return reason

    def _needed(self) -> ReaderProtocol:
        assert self._reader is not None  # `Expressions` ensures it
        return self._reader


def _stage(node: Node) -> int:
    """Return the stage of a node that calls a model: 0 for PK, 1 to rank, 2 to compress."""
    return 0 if isinstance(node, Source) else 1 if isinstance(node, ChunkRerank) else 2


def _merged(parts: Sequence[Found], merge: Callable[[Sequence[list[Passage]]], list[Passage]]) -> Found:
    """Return the passages of all parts as one list, or the first failure."""
    lists: list[list[Passage]] = []
    for part in parts:
        if isinstance(part, Failure):
            return part
        lists.append(part)
    return merge(lists)


def _join(lists: Sequence[list[Passage]]) -> list[Passage]:
    return [passage for passages in lists for passage in passages]
