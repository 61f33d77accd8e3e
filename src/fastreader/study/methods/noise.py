"""noise: a layout of gold, distracting and random passages (The Power of Noise)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.data import Example, Passage
from fastreader.errors import InputError
from fastreader.noise.labels import Kind
from fastreader.noise.layouts import FILL, Layout, LayoutSpec, MissingPassages
from fastreader.noise.prompt import ContextBudget, NoiseTemplate
from fastreader.noise.sources import Exhausted
from fastreader.reader.programs.requests import Program, write_one
from fastreader.study.method import Answered, Asked, Family, NotApplicable, OverLong, no_options
from fastreader.study.shelf import shelf_of


@dataclass(frozen=True)
class Noise:
    """One layout.

    Attributes:
        spec: the layout.
        source: as `NoiseConfig.random`.
        hard_count: hard distractors made for every question; the same for all layouts of a study, so that they share
            what they draw.
        max_new_tokens: of a reply.
        template: the prompt's texts.
    """

    spec: LayoutSpec
    source: str
    hard_count: int
    max_new_tokens: int
    template: NoiseTemplate

    @property
    def draws(self) -> bool:
        """As `StudyMethod.draws`."""
        return self.spec.noise in ("random", "hard")

    def programs(self, asked: Asked) -> list[Program[Answered]]:
        """As `StudyMethod.programs`."""
        return [self._program(asked, example) for example in asked.examples]

    def lay(self, asked: Asked, example: Example) -> Layout:
        """The layout of one question.

        Raises:
            NotApplicable: the question lacks right answers or passages, or the source of random ones has too few.
        """
        spec = self.spec
        if spec != LayoutSpec() and not (example.answers and example.passages):
            lacking = "passages" if example.answers else "right answers"
            raise NotApplicable(f"{spec.name}: the question has no {lacking}")
        room = self.room(asked)
        if spec.count == FILL and room.tokens is None:
            raise NotApplicable(f"{spec.name}: the reader does not say how long its context is")
        shelf = shelf_of(asked.everything, self.source, asked.seed, self.hard_count)
        try:
            return shelf.lay(example, spec, room)
        except (MissingPassages, Exhausted) as error:
            raise NotApplicable(str(error)) from error

    def room(self, asked: Asked) -> ContextBudget:
        """How the reader is asked."""
        return ContextBudget(asked.reader, self.template, self.max_new_tokens)

    def _program(self, asked: Asked, example: Example) -> Program[Answered]:
        laid, room = self.lay(asked, example), self.room(asked)
        prompt = room.prompt(example.question, laid.passages)
        if not room.holds(prompt):
            raise OverLong(
                f"{self.spec.name}: its prompt leaves no room for a reply in {asked.reader.max_length} tokens",
                len(prompt),
            )
        reply = yield from write_one("answer", prompt, max_new_tokens=self.max_new_tokens)
        trace = {
            "order": _order(laid, example),
            "layout": self.spec.name,
            "no_answer": self.template.refused(reply.text),
            "reply": reply.text,  # white space and all, as `answer_attention` needs it
            "prompt_tokens": reply.prompt_tokens,
            "finish_reason": reply.finish_reason,
        }
        return Answered(reply.text.strip(), trace)


def _order(laid: Layout, example: Example) -> list[Any]:
    places = {(p.title, p.text): i for i, p in reversed(list(enumerate(example.passages)))}
    order = []
    for passage, kind in zip(laid.passages, laid.kinds, strict=True):
        index = places.get((passage.title, passage.text))
        entry: dict[str, Any] = {"kind": str(kind)}
        entry |= {"title": passage.title, "text": passage.text} if index is None else {"index": index}
        order.append(entry)
    return order


def layout_of(trace: Mapping[str, Any], example: Example) -> Layout:
    """The layout that an answer's trace says was read."""
    passages = (
        example.passages[entry["index"]] if "index" in entry else Passage(entry["text"], entry["title"])
        for entry in trace["order"]
    )
    return Layout(trace["layout"], tuple(passages), tuple(Kind(entry["kind"]) for entry in trace["order"]))


def _make(variant: str, options: dict[str, Any], study: Any) -> Noise:
    no_options(f"noise:{variant}", options, ["max_new_tokens"])
    if not variant:
        raise InputError("method 'noise': expected a layout behind it, such as noise:gold or noise:random:4:near")
    specs = [LayoutSpec.parse(m.method.partition(":")[2]) for m in study.methods if m.method.startswith("noise:")]
    return Noise(
        LayoutSpec.parse(variant),
        study.noise.random,
        study.noise.hard_count or max((s.count for s in specs if s.noise == "hard"), default=0),
        options.get("max_new_tokens", study.noise.max_new_tokens),
        NoiseTemplate(),
    )


def _variants() -> Sequence[str]:
    return ["closed_book", "gold", "KIND:N:POSITION", "retrieved:K", "retrieved:K+random:M"]


NOISE = Family("noise", "a layout of gold, distracting and random passages", _variants, _make)
