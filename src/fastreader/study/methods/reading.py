"""base and closed_book: one reading of the passages as retrieved, and of the question alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Example
from fastreader.reader.programs.requests import Program, write_one
from fastreader.reader.prompts.template import Template
from fastreader.study.method import Answered, Asked, Family, no_options

STOP = ("\n",)
CLOSED_BOOK_HEADER = "Answer the question from memory. Give the answer alone, in a few words.\n"


@dataclass(frozen=True)
class Reading:
    """One greedy reading in the retriever's order.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: of the answer.
        passages: how many are read; None: all of the study's.
    """

    template: Template
    max_new_tokens: int
    passages: int | None = None
    draws: bool = field(default=False, init=False)

    def programs(self, asked: Asked) -> list[Program[Answered]]:
        """As `StudyMethod.programs`."""
        return [self._program(asked, example) for example in asked.examples]

    def _program(self, asked: Asked, example: Example) -> Program[Answered]:
        order = list(range(len(example.passages)))[: self.passages]
        reply = yield from read(asked, example, order, self.template, self.max_new_tokens)
        return Answered(reply, {"order": order})


def read(asked: Asked, example: Example, order: Sequence[int], template: Template, max_new_tokens: int) -> Program[str]:
    """`yield from` it: the answer after the passages in `order`."""
    prompt = reading_prompt(asked, example, order, template)
    reply = yield from write_one("answer", prompt, max_new_tokens=max_new_tokens, stop=STOP)
    return reply.text.strip()


def reading_prompt(asked: Asked, example: Example, order: Sequence[int], template: Template) -> TextOrTokens:
    """The prompt that MoI's last reading uses too."""
    from fastreader.moi.reading import reading_prompts

    return reading_prompts(asked.reader.tree_reader(), example.question, example.passages, [order], template)[0]


def _base(variant: str, options: dict[str, Any], study: Any) -> Reading:
    no_options("base", {**options, **({variant: None} if variant else {})}, ["max_new_tokens", "passages"])
    return Reading(template_of(study), options.get("max_new_tokens", study.max_new_tokens), options.get("passages"))


def _closed_book(variant: str, options: dict[str, Any], study: Any) -> Reading:
    no_options("closed_book", {**options, **({variant: None} if variant else {})}, ["max_new_tokens", "header"])
    template = replace(template_of(study), header=options.get("header", CLOSED_BOOK_HEADER))
    return Reading(template, options.get("max_new_tokens", study.max_new_tokens), 0)


def template_of(study: Any) -> Template:
    """The template of the study's file, or the default."""
    return Template.load(study.template) if study.template else Template()


BASE = Family("base", "the passages as retrieved, read once", lambda: [""], _base)
CLOSED_BOOK = Family("closed_book", "the question alone", lambda: [""], _closed_book)
