"""Methods that end in one reading: the passages as retrieved, by relevance or as arranged, or the question only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fastreader.core.checks import expect
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.passages.arrange import Arranger, arrange
from fastreader.passages.ranking import rerank
from fastreader.passages.ranking.relevance import RELEVANCE
from fastreader.passages.ranking.rerank import LIKELIHOOD
from fastreader.passages.ranking.yes_no import YES_NO
from fastreader.reader.programs.requests import Program, score, write
from fastreader.reader.prompts.template import Template
from fastreader.scoring.reading import reading_pieces
from fastreader.study.cached_reader import CachedReader, scoring
from fastreader.study.method import NOTHING, Answered, Batch, Family, NotApplicable, StudyMethod, check_options

STOP = ("\n",)
CLOSED_BOOK_HEADER = "Answer the question from memory. Give the answer alone, in a few words.\n"
_BASE = ("max_new_tokens", "passages")
_CLOSED_BOOK = ("max_new_tokens", "header")
_RERANK = ("instruction", "max_new_tokens", "model", "top_n")
_ARRANGE = ("bias", "max_new_tokens")


@dataclass(frozen=True)
class TemplateMethod(StudyMethod):
    """Base of methods that fill the study's template.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: at most this many tokens of an answer.
        candidates: answers to choose from, or "rows" for each question's own; empty to write the answer.
    """

    template: Template
    max_new_tokens: int
    candidates: str | tuple[str, ...]

    @classmethod
    def of(cls, study: Any, options: Mapping[str, Any]) -> Self:
        """Create a method from the study's settings and the method's own options, which are named as its attributes."""
        shared = {name: getattr(study, name) for name in ("max_new_tokens", "candidates")}
        return cls(**{"template": template_of(study), **shared, **options})

    @property
    def chooses_from_rows(self) -> bool:
        """Whether the answer is one of the question's own candidates."""
        return self.candidates == "rows"

    def choices(self, example: Example) -> list[str]:
        """Return the answers to choose from, an empty list if the reader writes the answer.

        Raises:
            NotApplicable: if the question should have candidates and has none.
        """
        if not self.chooses_from_rows:
            return list(self.candidates)
        if not example.candidates:
            raise NotApplicable("candidates: the question has none")
        return list(example.candidates)

    def _answers(self, batch: Batch, example: Example, orders: Iterable[Sequence[int]]) -> Program[list[str]]:
        """Write an answer after the passages in each order, or choose the likeliest candidate."""
        chosen = self.choices(example)
        pieces = reading_pieces(batch.reader.tree_reader(), example, chosen, self.template)
        prompts = [pieces.head + pieces.body(order) + pieces.tail() for order in orders]
        if not chosen:
            replies = yield from write("answer", prompts, max_new_tokens=self.max_new_tokens, stop=STOP)
            return [texts[0].text.strip() for texts in replies]
        scored = yield from score("answer", [(prompt, tokens) for prompt in prompts for tokens in pieces.candidates])
        nats = np.array([each.logprob for each in scored]).reshape(len(prompts), len(chosen))
        return [chosen[i] for i in nats.argmax(axis=1).tolist()]

    def _read(
        self, batch: Batch, example: Example, order: Sequence[int], direct: TreeStats = NOTHING, **trace: Any
    ) -> Program[Answered]:
        """Generate the answer after the passages in `order`, with the prompt of MoI's last reading."""
        (text,) = yield from self._answers(batch, example, [order])
        return Answered(text, {"order": order, **trace}, direct)


@dataclass(frozen=True)
class ReadingMethod(TemplateMethod):
    """One greedy reading in the retriever's order.

    Attributes:
        passages: read at most this many passages; None reads all of the study's.
    """

    passages: int | None = None

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        return self._read(batch, example, list(range(len(example.passages)))[: self.passages])


def _base(variant: str, options: dict[str, Any], study: Any) -> ReadingMethod:
    check_options("base", options, _BASE)
    return ReadingMethod.of(study, options)


def _closed_book(variant: str, options: dict[str, Any], study: Any) -> ReadingMethod:
    check_options("closed_book", options, _CLOSED_BOOK)
    template = replace(template_of(study), header=options.pop("header", CLOSED_BOOK_HEADER))
    return ReadingMethod.of(study, {**options, "template": template, "passages": 0})


def template_of(study: Any) -> Template:
    """Return the template in the study's file, or the default."""
    return Template.load(study.template) if study.template else Template()


@dataclass(frozen=True)
class RerankMethod(TemplateMethod):
    """Passages by relevance, then one reading.

    Attributes:
        top_n: read at most this many passages; None reads all.
        method: a method of `rerank`; None takes the one that `model` was trained for, else query likelihood.
        model: name of the reader that ranks; None for the study's.
        instruction: what makes a passage relevant; None takes the default.
    """

    reads = "rerank"
    top_n: int | None = None
    method: str | None = None
    model: str | None = None
    instruction: str | None = None

    @property
    def ranker(self) -> str | None:
        """`model`."""
        return self.model

    def programs(self, batch: Batch) -> list[Program[Answered]]:
        """Return a program for each question, after a check that the reader can rank by the method."""
        if batch.examples:
            reader = ranker_of(batch, self.model)
            fits = reader.is_reranker or self._way(reader) != RELEVANCE
            expected = "a relevance model; others rank by 'rerank' or 'rerank:yes_no'"
            expect(fits, "method 'rerank:relevance': model", expected, reader.name)
            fits = self.instruction is None or self._way(reader) != LIKELIHOOD
            expected = f"none, since {reader.name} ranks by query likelihood, which has a template instead"
            expect(fits, "method 'rerank': instruction", expected, self.instruction)
        return super().programs(batch)

    def _way(self, reader: CachedReader) -> str:
        """Return the method of `rerank`. A study's own reader ranks by its score only if asked to by name."""
        by_default = RELEVANCE if self.model is not None and reader.is_reranker else LIKELIHOOD
        return self.method or by_default

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        reader = ranker_of(batch, self.model)
        how: Any = {"template": self.template, "top_n": self.top_n, "method": self._way(reader)}
        how["instruction"], direct = self.instruction, NOTHING
        if self.model is None and how["method"] != RELEVANCE:
            ranked = yield from scoring("rerank", reader, lambda found: rerank(found, example, **how))
        else:  # requests of a program go to the study's reader, and return log-likelihoods
            ranked = rerank(reader.tree_reader(), example, **how)
            direct = ranked.stats
        scores = [result.relevance for result in ranked]
        answered = yield from self._read(batch, example, ranked.indices, direct, order_scores=scores)
        return replace(answered, result=ranked)


def ranker_of(batch: Batch, model: str | None) -> CachedReader:
    """Return the reader of that name, or the study's for None."""
    return batch.reader if model is None else batch.models(model)


def _rerank(variant: str, options: dict[str, Any], study: Any) -> RerankMethod:
    name = f"rerank:{variant}" if variant else "rerank"
    check_options(name, options, _RERANK)
    told = variant or "model" in options or "instruction" not in options
    expected = "none without a model, since query likelihood has a template instead"
    expect(bool(told), f"method {name!r}: instruction", expected, options.get("instruction"))
    return RerankMethod.of(study, {**options, "method": variant or None})


@dataclass(frozen=True)
class ArrangeMethod(TemplateMethod):
    """One greedy reading of the passages as `fr.arrange` places them, for any number of passages.

    Attributes:
        arranger: places passages; None takes the reader's calibrations.
    """

    reads = "arrange"
    arranger: Arranger | None = None

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        arranger = self.arranger or Arranger.for_reader(batch.reader, self.template)
        places = arrange(list(enumerate(example.passages)), arranger, _scores(example))
        order = [index for index, _ in places]
        answered = yield from self._read(batch, example, order, design="arranged", calibrated=[*arranger.biases])
        return answered


def _scores(example: Example) -> list[float]:
    """Return the retriever's scores, or numbers that fall with the place if no passage has a score.

    Raises:
        NotApplicable: if only some passages have a score.
    """
    known = [passage.score for passage in example.passages if passage.score is not None]
    if known and len(known) < len(example.passages):
        raise NotApplicable(f"arrange: {len(known)} of {len(example.passages)} passages have a score")
    return known or [-float(place) for place in range(len(example.passages))]


def _arrange(variant: str, options: dict[str, Any], study: Any) -> ArrangeMethod:
    check_options("arrange", options, _ARRANGE)
    path = options.pop("bias", study.moi.get("bias"))
    expect(path is None or isinstance(path, str), "bias", "a file of a calibration or an arranger", path)
    return ArrangeMethod.of(study, {**options, "arranger": None if path is None else Arranger.load(path)})


BASE = Family("base", _base, lambda _: _BASE, {"": "Read the passages once, as retrieved."})
CLOSED_BOOK = Family("closed_book", _closed_book, lambda _: _CLOSED_BOOK, {"": "Read the question without passages."})
RERANK = Family(
    "rerank",
    _rerank,
    lambda _: _RERANK,
    {
        "": "Read the passages once, by query likelihood or as `model` scores them, the best first.",
        RELEVANCE: "Read the passages once, by the score of a relevance model, the best first.",
        YES_NO: "Read the passages once, by the reader's yes or no to each, the best first.",
    },
)
ARRANGE = Family(
    "arrange", _arrange, lambda _: _ARRANGE, {"": "Read the passages once, the best where the reader looks most."}
)
