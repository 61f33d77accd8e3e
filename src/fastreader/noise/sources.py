"""Where random passages come from: a pool of passages, or random words.

A source draws for one question at a time. What it draws depends on its seed and the question's key alone, and the
first passages of a longer draw are those of a shorter one, so that layouts with more of them share their prefix.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fastreader.data.types import Passage
from fastreader.errors import InputError

Accept = Callable[[Passage], bool]
_TRIES = 1000  # random-word passages in a row that may hold an answer, as a one-letter answer makes them


class Exhausted(InputError):
    """A source has not as many passages for a question as were asked for.

    Attributes:
        available: how many it has.
    """

    def __init__(self, message: str, available: int) -> None:
        super().__init__(message)
        self.available = available


class RandomSource(Protocol):
    """Draws random passages."""

    def draw(self, count: int, key: str, accept: Accept) -> list[Passage]:
        """`count` passages for the question `key`, each of which `accept` allows.

        Raises:
            Exhausted: there are not that many.
        """
        ...


@dataclass(frozen=True)
class Pool:
    """Draws from passages without putting back: the pool the retriever searched, or another corpus.

    Attributes:
        passages: the pool.
        seed: of the draws.
    """

    passages: Sequence[Passage]
    seed: int = 0

    def draw(self, count: int, key: str, accept: Accept) -> list[Passage]:
        """As `RandomSource.draw`."""
        drawn: list[Passage] = []
        for index in _shuffled(len(self.passages), _generator(self.seed, key)):
            if len(drawn) == count:
                return drawn
            if accept(self.passages[index]):
                drawn.append(self.passages[index])
        if len(drawn) < count:
            raise Exhausted(
                f"Pool: {count} random passages asked for {key!r}, but only {len(drawn)} of {len(self.passages)} have "
                "nothing to do with it",
                len(drawn),
            )
        return drawn


@dataclass(frozen=True)
class Words:
    """Makes passages of random words, as in table 4 of the paper.

    Attributes:
        vocabulary: the words, each as likely as any other.
        length: words in a passage.
        seed: of the draws.
    """

    vocabulary: Sequence[str]
    length: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.vocabulary or self.length < 1:
            raise InputError(
                f"Words: expected words and a length of at least 1, got {len(self.vocabulary)} words and {self.length}"
            )

    @classmethod
    def of(cls, passages: Sequence[Passage], *, length: int = 50, seed: int = 0) -> Words:
        """Over the distinct words of some passages.

        Raises:
            InputError: they hold no word.
        """
        return cls(sorted({word for p in passages for word in p.text.split()}), length, seed)

    def draw(self, count: int, key: str, accept: Accept) -> list[Passage]:
        """As `RandomSource.draw`; the passages have no title and no identifier."""
        generator = _generator(self.seed, key)
        drawn: list[Passage] = []
        refused = 0
        while len(drawn) < count:
            chosen = generator.integers(0, len(self.vocabulary), self.length)
            passage = Passage(" ".join(self.vocabulary[i] for i in chosen))
            if accept(passage):
                drawn.append(passage)
                refused = 0
            elif (refused := refused + 1) == _TRIES:
                raise Exhausted(
                    f"Words: {_TRIES} passages of random words in a row hold an answer to {key!r}", len(drawn)
                )
        return drawn


def _generator(seed: int, key: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(key.encode("utf-8"))])


def _shuffled(size: int, generator: np.random.Generator) -> Iterator[int]:
    """0..size-1 in random order (Fisher and Yates), at the cost of what is taken and not of `size`."""
    moved: dict[int, int] = {}
    for place in range(size):
        other = int(generator.integers(place, size))
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)
