"""base and closed_book: one reading of the passages as retrieved, or of the question alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastreader.core.protocol import Generation
from fastreader.data import Example
from fastreader.reader.programs.requests import Program, write_one
from fastreader.reader.prompts.template import Template
from fastreader.study.method import Answered, Batch, Family, StudyMethod, check_options

STOP = ("\n",)
CLOSED_BOOK_HEADER = "Answer the question from memory. Give the answer alone, in a few words.\n"
_BASE = ("max_new_tokens", "passages")
_CLOSED_BOOK = ("max_new_tokens", "header")


@dataclass(frozen=True)
class ReadingMethod(StudyMethod):
    """One greedy reading in the retriever's order.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: at most this many tokens of the answer.
        passages: read at most this many passages; None reads all of the study's.
    """

    template: Template
    max_new_tokens: int
    passages: int | None = None

    def program(self, batch: Batch, example: Example) -> Program[Answered]:
        """Return the program for one question; see `StudyMethod.program`."""
        order = list(range(len(example.passages)))[: self.passages]
        reply = yield from read(batch, example, order, self.template, self.max_new_tokens)
        return Answered(reply.text.strip(), {"order": order})


def read(
    batch: Batch, example: Example, order: Sequence[int], template: Template, max_new_tokens: int
) -> Program[Generation]:
    """Generate the answer after the passages in `order`, with the prompt of MoI's last reading; use `yield from`."""
    from fastreader.scoring.reading import reading_prompts

    reader = batch.reader.tree_reader()
    prompt = reading_prompts(reader, example.question, example.passages, [order], template)[0]
    reply = yield from write_one("answer", prompt, max_new_tokens=max_new_tokens, stop=STOP)
    return reply


def _base(variant: str, options: dict[str, Any], study: Any) -> ReadingMethod:
    check_options("base", options, _BASE)
    return ReadingMethod(
        template_of(study), options.get("max_new_tokens", study.max_new_tokens), options.get("passages")
    )


def _closed_book(variant: str, options: dict[str, Any], study: Any) -> ReadingMethod:
    check_options("closed_book", options, _CLOSED_BOOK)
    template = replace(template_of(study), header=options.get("header", CLOSED_BOOK_HEADER))
    return ReadingMethod(template, options.get("max_new_tokens", study.max_new_tokens), 0)


def template_of(study: Any) -> Template:
    """Return the template in the study's file, or the default."""
    return Template.load(study.template) if study.template else Template()


BASE = Family("base", "the passages as retrieved, read once", lambda: [""], _base, lambda _: _BASE)
CLOSED_BOOK = Family("closed_book", "the question alone", lambda: [""], _closed_book, lambda _: _CLOSED_BOOK)
