"""Passages for a study's noise layouts, gathered once per question, with random ones on demand."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from fastreader.core.lazy import cached_property
from fastreader.data import Example, Passage, iter_passages, sample_passages
from fastreader.data.fingerprints import file_stamp
from fastreader.noise.labels import same_text
from fastreader.noise.layouts import FILL, Layout, LayoutSpec, StillFits, layout
from fastreader.noise.materials import Materials, by_title, gather
from fastreader.noise.prompt import ContextBudget
from fastreader.noise.sources import DistractorPool, Exhausted, RandomSource, RandomWords

_POOL = 100_000  # passages of a file that random ones are drawn from; of a longer file, a sample of this length
_FILL_FIRST = 32  # random passages drawn for a layout that fills the context, doubled while all of them fit
_KEPT = 64  # questions whose materials are kept; layouts of a group of questions come one after the other


class PassageProvider:
    """Materials of a study's questions, from one source of random passages and one seed.

    The draws for a question depend only on the seed and its key, and a smaller number of passages is the beginning of
    a larger one, so neither the order nor the choice of the layouts matters.

    Args:
        everything: all questions of the study.
        source: as `NoiseConfig.random`.
        seed: of the draws.
        hard_count: number of hard distractors per question.
    """

    def __init__(self, everything: Sequence[Example], source: str, seed: int, hard_count: int) -> None:
        self.everything = everything
        self._source, self._seed, self._hard = source, seed, hard_count
        self._kept: dict[str, Materials] = {}

    def layout(self, example: Example, spec: LayoutSpec, room: ContextBudget) -> Layout:
        """Return one layout of one question, with as many random passages as it needs.

        Raises:
            MissingPassages: if the question lacks passages of a kind, see `noise.layout`.
            Exhausted: if the source has fewer random passages than the layout needs.
            InputError: if `noise.gather` or `noise.layout` rejects an argument.
        """
        if spec == LayoutSpec():
            return Layout(spec.name, (), ())  # the closed book, which needs nothing
        fits = room.fits(example.question)
        if spec.count != FILL:
            return layout(self._materials(example, spec.count if spec.noise == "random" else 0), spec)
        count, most = _FILL_FIRST, math.inf
        while True:
            try:
                materials = self._materials(example, count)
            except Exhausted as error:
                count = most = error.available
                continue
            try:
                return layout(materials, spec, fits=fits)
            except StillFits:
                if len(materials.random) >= most:
                    raise
                count = 2 * len(materials.random)

    @cached_property
    def _passages(self) -> list[Passage]:
        """The pool of passages to draw from."""
        if self._source not in ("others", "words"):
            return _sample(self._source, self._seed, file_stamp(self._source))
        return list({(p.title, p.text): p for e in self.everything for p in e.passages}.values())

    @cached_property
    def _random(self) -> RandomSource:
        if self._source == "words":
            return RandomWords.of(self._passages, seed=self._seed)
        return DistractorPool(self._passages, self._seed)

    @cached_property
    def _titles(self) -> dict[str, list[Passage]]:
        if not self._hard:
            return {}
        if self._source in ("others", "words"):
            return by_title(self._passages)
        wanted = {same_text(p)[0] for example in self.everything for p in example.passages if p.is_gold}
        return by_title(p for p in iter_passages(self._source) if same_text(p)[0] in wanted)

    @cached_property
    def _others(self) -> list[Example]:
        return [example for example in self.everything if example.answers] if self._hard else []

    def _materials(self, example: Example, count: int) -> Materials:
        """Return the question's materials with at least `count` random passages."""
        key = example.id if example.id is not None else example.question
        known = self._kept.get(key)
        if known is None or len(known.random) < count:
            known = gather(
                example,
                random=self._random if count else None,
                random_count=count,
                titles=self._titles,
                others=[other for other in self._others if other.id != example.id],
                hard_count=self._hard,
                seed=self._seed,
            )
            self._kept.pop(key, None)
            self._kept[key] = known
            if len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return known


_providers: list[tuple[tuple[str, int, int], PassageProvider]] = []  # of the study that runs


def provider_of(everything: Sequence[Example], source: str, seed: int, hard_count: int) -> PassageProvider:
    """Return the provider for these arguments, which the layouts of a study share."""
    key = (source, seed, hard_count)
    for known, provider in _providers:
        if known == key and provider.everything is everything:
            return provider
    _providers[:] = [(k, p) for k, p in _providers if p.everything is everything]  # only of one study at a time
    _providers.append((key, PassageProvider(everything, source, seed, hard_count)))
    return _providers[-1][1]


@functools.lru_cache(maxsize=2)
def _sample(name: str, seed: int, stamp: tuple[int, int]) -> list[Passage]:
    return sample_passages(name, _POOL, seed=seed)
