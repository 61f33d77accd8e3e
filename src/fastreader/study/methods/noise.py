"""noise: a layout of gold, distracting and random passages (The Power of Noise)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_number, check_text
from fastreader.data import Example, Passage
from fastreader.noise.labels import Kind
from fastreader.noise.layouts import FILL, Layout, LayoutSpec, MissingPassages
from fastreader.noise.prompt import ContextBudget, NoiseTemplate
from fastreader.noise.sources import Exhausted
from fastreader.reader.programs.requests import Program, write_one
from fastreader.study.method import Answered, Batch, Family, NotApplicable, OverLong, StudyMethod, check_options
from fastreader.study.provider import provider_of

_OPTIONS = ("max_new_tokens", "stop", "repetition_penalty", "template")


@dataclass(frozen=True)
class NoiseMethod(StudyMethod):
    """One layout.

    Attributes:
        spec: the layout.
        source: as `NoiseConfig.random`.
        hard_count: number of hard distractors per question; the same for all layouts of a study, so that they share
            their draws.
        max_new_tokens: at most this many tokens of a reply.
        template: the prompt's texts.
        stop: texts that end a reply.
        repetition_penalty: see `Reader.generate`.
    """

    spec: LayoutSpec
    source: str
    hard_count: int
    max_new_tokens: int
    template: NoiseTemplate
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return self.spec.noise in ("random", "hard")

    def layout(self, batch: Batch, example: Example) -> Layout:
        """Return the layout of one question.

        Raises:
            NotApplicable: if the question lacks right answers or passages, or the source has too few random ones.
        """
        spec = self.spec
        if spec != LayoutSpec() and not (example.answers and example.passages):
            lacking = "passages" if example.answers else "right answers"
            raise NotApplicable(f"{spec.name}: the question has no {lacking}")
        room = self._room(batch)
        if spec.count == FILL and room.tokens is None:
            raise NotApplicable(f"{spec.name}: the reader does not say how long its context is")
        provider = provider_of(batch.everything, self.source, batch.seed, self.hard_count)
        try:
            return provider.layout(example, spec, room)
        except (MissingPassages, Exhausted) as error:
            raise NotApplicable(str(error)) from error

    def _room(self, batch: Batch) -> ContextBudget:
        return ContextBudget(batch.reader, self.template, self.max_new_tokens)

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        layout, room = self.layout(batch, example), self._room(batch)
        prompt = room.prompt(example.question, layout.passages)
        if not room.holds(prompt):
            raise OverLong(
                f"{self.spec.name}: its prompt leaves no room for a reply in {batch.reader.max_length} tokens",
                len(prompt),
            )
        how: dict[str, Any] = {"stop": self.stop, "repetition_penalty": self.repetition_penalty}
        reply = yield from write_one("answer", prompt, max_new_tokens=self.max_new_tokens, **how)
        trace = {
            "order": _order(layout, example),
            "layout": self.spec.name,
            "no_answer": self.template.refused(reply.text),
            "reply": reply.text,  # with its white space, as `answer_attention` needs it
            "prompt_tokens": reply.prompt_tokens,
            "finish_reason": reply.finish_reason,
        }
        return Answered(reply.text.strip(), trace)


def _order(layout: Layout, example: Example) -> list[Any]:
    places = {(p.title, p.text): i for i, p in reversed(list(enumerate(example.passages)))}
    order = []
    for passage, kind in zip(layout.passages, layout.kinds, strict=True):
        index = places.get((passage.title, passage.text))
        entry: dict[str, Any] = {"kind": str(kind)}
        if index is None:
            entry |= {"title": passage.title, "text": passage.text} | ({"id": passage.id} if passage.id else {})
        else:
            entry["index"] = index
        order.append(entry)
    return order


def layout_of(trace: Mapping[str, Any], example: Example) -> Layout:
    """Return the layout that was read, from an answer's trace."""
    passages = (
        example.passages[entry["index"]]
        if "index" in entry
        else Passage(entry["text"], entry["title"], entry.get("id"))
        for entry in trace["order"]
    )
    return Layout(trace["layout"], tuple(passages), tuple(Kind(entry["kind"]) for entry in trace["order"]))


def _make(variant: str, options: dict[str, Any], study: Any) -> NoiseMethod:
    check_options(f"noise:{variant}", options, _OPTIONS)
    check_text("method 'noise': layout, such as noise:gold or noise:random:4:near", variant)
    penalty = options.get("repetition_penalty", study.noise.repetition_penalty)
    check_number("method 'noise': repetition_penalty", penalty, above=0, json_value=True)
    specs = [LayoutSpec.parse(m.method.partition(":")[2]) for m in study.methods if m.method.startswith("noise:")]
    return NoiseMethod(
        LayoutSpec.parse(variant),
        study.noise.random,
        study.noise.hard_count or max((s.count for s in specs if s.noise == "hard"), default=0),
        options.get("max_new_tokens", study.noise.max_new_tokens),
        NoiseTemplate.from_dict(options.get("template", study.noise.template)),
        tuple(options.get("stop", study.noise.stop)),
        penalty,
    )


_ABOUT = {
    "closed_book": "Read the question without passages, in the prompt of Power of Noise.",
    "gold": "Read the gold passage alone.",
    "KIND:N:POSITION": "Read the gold passage at a position among N of a kind, such as distracting:4:near.",
    "retrieved:K": "Read the K passages retrieved first, the best next to the question.",
    "retrieved:K+random:M": "Read the K passages retrieved first, and M random ones before them.",
}
NOISE = Family("noise", _make, lambda _: _OPTIONS, _ABOUT, parsed=True)
