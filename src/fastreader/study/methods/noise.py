"""noise: a layout of gold, distracting and random passages (The Power of Noise)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.data import Example, load_passages
from fastreader.errors import InputError
from fastreader.noise.layouts import FILL, Layout, LayoutSpec, MissingPassages, layout
from fastreader.noise.materials import Materials, gather
from fastreader.noise.prompt import NoiseTemplate
from fastreader.noise.sources import Pool, RandomSource, Words
from fastreader.protocol import TextOrTokens
from fastreader.study.method import Answered, Asked, Family, NotApplicable, no_options
from fastreader.sure.requests import Program, write_one

_FOR_FILL = 64  # random passages drawn where a layout fills the context and nobody said how many


@dataclass(frozen=True)
class Noise:
    """One layout.

    Attributes:
        spec: the layout.
        source: as `NoiseConfig.random`.
        random_count, hard_count: passages gathered for every question; the same for all layouts of a study, so that
            they share what they draw.
        max_new_tokens: of a reply.
        template: the prompt's texts.
    """

    spec: LayoutSpec
    source: str
    random_count: int
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

    def materials(self, asked: Asked, example: Example) -> Materials:
        """The question's passages by kind.

        Raises:
            NotApplicable: the question has no right answers or no passages.
        """
        if not example.answers or not example.passages:
            lacking = "right answers" if not example.answers else "passages"
            raise NotApplicable(f"{self.spec.name}: the question has no {lacking}")
        others = [e for e in asked.everything if e.id != example.id and e.answers] if self.hard_count else []
        return gather(
            example,
            random=_source(self.source, asked, example) if self.random_count else None,
            random_count=self.random_count,
            others=others,
            hard_count=self.hard_count,
            seed=asked.seed,
        )

    def _program(self, asked: Asked, example: Example) -> Program[Answered]:
        materials = self.materials(asked, example)

        def prompt(laid: Sequence[Any]) -> TextOrTokens:
            return asked.reader.prompt(self.template.pieces(example.question, laid), **self.template.options())

        limit = asked.reader.max_length
        room = None if limit is None else limit - self.max_new_tokens + 1
        try:
            laid = layout(materials, self.spec, fits=lambda p: room is None or len(prompt(p)) <= room)
        except MissingPassages as error:
            raise NotApplicable(str(error)) from error
        tokens = prompt(laid.passages)
        if room is not None and len(tokens) > room:
            raise NotApplicable(
                f"{self.spec.name}: its prompt of {len(tokens)} tokens leaves no room for a reply in {limit}"
            )
        reply = yield from write_one("answer", tokens, max_new_tokens=self.max_new_tokens)
        refused = bool(self.template.no_answer) and self.template.no_answer.lower() in reply.text.lower()
        trace = {"order": _order(laid, example), "layout": self.spec.name, "no_answer": refused}
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


def _source(name: str, asked: Asked, example: Example) -> RandomSource:
    if name == "words":
        return Words.of(_everything(tuple(map(id, asked.everything)), asked), seed=asked.seed)
    if name == "others":
        return Pool(_everything(tuple(map(id, asked.everything)), asked), asked.seed)
    return Pool(_file(name), asked.seed)


_POOLS: dict[Any, list[Any]] = {}


def _everything(key: Any, asked: Asked) -> list[Any]:
    """All passages of the study, each once; the last study's are kept."""
    if key not in _POOLS:
        _POOLS.clear()
        _POOLS[key] = list({(p.title, p.text): p for e in asked.everything for p in e.passages}.values())
    return _POOLS[key]


@functools.lru_cache(maxsize=2)
def _file(name: str) -> Any:
    return load_passages(name)


def _make(variant: str, options: dict[str, Any], study: Any) -> Noise:
    no_options(f"noise:{variant}", options, ["max_new_tokens"])
    if not variant:
        raise InputError("method 'noise': expected a layout behind it, such as noise:gold or noise:random:4:near")
    specs = [LayoutSpec.parse(m.method.partition(":")[2]) for m in study.methods if m.method.startswith("noise:")]
    return Noise(
        LayoutSpec.parse(variant),
        study.noise.random,
        study.noise.random_count or _most(specs, "random"),
        study.noise.hard_count or _most(specs, "hard"),
        options.get("max_new_tokens", study.noise.max_new_tokens),
        NoiseTemplate(),
    )


def _most(specs: Sequence[LayoutSpec], kind: str) -> int:
    counts = [_FOR_FILL if spec.count == FILL else spec.count for spec in specs if spec.noise == kind]
    return max(counts, default=0)


def _variants() -> Sequence[str]:
    return ["closed_book", "gold", "KIND:N:POSITION", "retrieved:K", "retrieved:K+random:M"]


NOISE = Family("noise", "a layout of gold, distracting and random passages", _variants, _make)
