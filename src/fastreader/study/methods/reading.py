"""base and closed_book: one reading of the passages as retrieved, or of the question only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.reader.programs.requests import Program, write_one
from fastreader.reader.prompts.template import Template
from fastreader.study.method import NOTHING, Answered, Batch, Family, StudyMethod, check_options

STOP = ("\n",)
CLOSED_BOOK_HEADER = "Answer the question from memory. Give the answer alone, in a few words.\n"
_BASE = ("max_new_tokens", "passages")
_CLOSED_BOOK = ("max_new_tokens", "header")


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
        from fastreader.scoring.reading import reading_prompts

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


BASE = Family("base", "the passages as retrieved, read once", _base, lambda _: _BASE)
CLOSED_BOOK = Family("closed_book", "the question alone", _closed_book, lambda _: _CLOSED_BOOK)
