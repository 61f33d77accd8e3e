"""Methods that end in one reading: the passages as retrieved, by relevance or as arranged, or the question only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fastreader.core.checks import expect
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.passages.arrange import Arranger, arrange
from fastreader.passages.ranking import rerank
from fastreader.reader.programs.requests import Program, write_one
from fastreader.reader.prompts.template import Template
from fastreader.scoring.reading import reading_prompts
from fastreader.study.cached_reader import scoring
from fastreader.study.method import NOTHING, Answered, Batch, Family, NotApplicable, StudyMethod, check_options

STOP = ("\n",)
CLOSED_BOOK_HEADER = "Answer the question from memory. Give the answer alone, in a few words.\n"
_BASE = ("max_new_tokens", "passages")
_CLOSED_BOOK = ("max_new_tokens", "header")
_RERANK = ("max_new_tokens", "top_n")
_ARRANGE = ("bias", "max_new_tokens")


@dataclass(frozen=True)
class TemplateMethod(StudyMethod):
    """Base of methods that fill the study's template.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: at most this many tokens of an answer.
    """

    template: Template
    max_new_tokens: int

    @classmethod
    def of(cls, study: Any, options: Mapping[str, Any]) -> Self:
        """Create a method from the study's settings and the method's own options, which are named as its attributes."""
        return cls(**{"template": template_of(study), "max_new_tokens": study.max_new_tokens, **options})

    def _read(
        self, batch: Batch, example: Example, order: Sequence[int], direct: TreeStats = NOTHING, **trace: Any
    ) -> Program[Answered]:
        """Generate the answer after the passages in `order`, with the prompt of MoI's last reading."""
        reader = batch.reader.tree_reader()
        prompt = reading_prompts(reader, example.question, example.passages, [order], self.template)[0]
        reply = yield from write_one("answer", prompt, max_new_tokens=self.max_new_tokens, stop=STOP)
        return Answered(reply.text.strip(), {"order": order, **trace}, direct)


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
        method: a method of `rerank`; None takes query likelihood.
    """

    reads = "rerank"
    top_n: int | None = None
    method: str | None = None

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        how: Any = {"template": self.template, "top_n": self.top_n, "method": self.method}
        ranked = yield from scoring("rerank", batch.reader, lambda reader: rerank(reader, example, **how))
        scores = [result.relevance for result in ranked]
        answered = yield from self._read(batch, example, ranked.indices, order_scores=scores)
        return replace(answered, result=ranked)


def _rerank(variant: str, options: dict[str, Any], study: Any) -> RerankMethod:
    check_options("rerank", options, _RERANK)
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
        "": "Read the passages once, by query likelihood, the best first.",
        "yes_no": "Read the passages once, by the reader's yes or no to each, the best first.",
    },
)
ARRANGE = Family(
    "arrange", _arrange, lambda _: _ARRANGE, {"": "Read the passages once, the best where the reader looks most."}
)
