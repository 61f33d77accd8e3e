"""Sources of random passages: a pool of passages, or random words.

A source draws for one question at a time. The draw depends only on the seed and the question's key, and the
first passages of a longer draw are the same as in a shorter one, so that layouts with more of them share their prefix.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_seed, expect
from fastreader.data.types import Passage
from fastreader.errors import InputError

Accept = Callable[[Passage], bool]
_TRIES = 1000  # consecutive passages of random words that may hold an answer, as happens with a one-letter answer


class Exhausted(InputError):
    """A source has fewer passages for a question than requested.

    Attributes:
        available: number of passages that it has.
    """

    def __init__(self, message: str, available: int) -> None:
        super().__init__(message)
        self.available = available


MOST_DRAWN = 100_000  # passages for one question


@runtime_checkable
class RandomSource(Protocol):
    """Draws random passages."""

    def draw(self, count: int, key: str, accept: Accept) -> list[Passage]:
        """Draw `count` passages that `accept` allows for the question `key`.

        Raises:
            Exhausted: if there are fewer.
        """
        ...


@checked
@dataclass(frozen=True)
class DistractorPool:
    """Draws passages without replacement, from the pool that the retriever searched or from another corpus.

    Attributes:
        passages: the pool.
        seed: seed of the draws.
    """

    passages: Sequence[Passage]
    seed: int = 0

    def draw(self, count: int, key: str, accept: Accept) -> list[Passage]:
        """Draw passages, see `RandomSource.draw`."""
        check_int("count", count, 0, MOST_DRAWN)
        drawn: list[Passage] = []
        for index in _shuffled(len(self.passages), question_generator(self.seed, key)):
            if len(drawn) == count:
                return drawn
            if accept(self.passages[index]):
                drawn.append(self.passages[index])
        if len(drawn) < count:
            raise Exhausted(
                f"Pool: expected {count} random passages for {key!r}, but only {len(drawn)} of {len(self.passages)} "
                "are unrelated to it",
                len(drawn),
            )
        return drawn


@checked
@dataclass(frozen=True)
class RandomWords:
    """Makes passages of random words, as in table 4 of the paper.

    Attributes:
        vocabulary: the words, all equally likely.
        length: number of words in a passage.
        seed: seed of the draws.

    Raises:
        InputError: if there are no words, or `length` < 1.
    """

    vocabulary: Sequence[str]
    length: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        expect(len(self.vocabulary) > 0, "RandomWords.vocabulary", "at least one word", self.vocabulary)
        check_int("RandomWords.length", self.length)

    @classmethod
    def of(cls, passages: Sequence[Passage], *, length: int = 50, seed: int = 0) -> RandomWords:
        """Create a source over the distinct words of some passages.

        Raises:
            InputError: if the passages hold no word.
        """
        words = sorted({word for p in passages for word in p.text.split()})
        expect(bool(words), "passages", "at least one word in them", passages)
        return cls(words, length, seed)

    def draw(self, count: int, key: str, accept: Accept) -> list[Passage]:
        """Make passages without title and identifier, see `RandomSource.draw`."""
        check_int("count", count, 0, MOST_DRAWN)
        generator = question_generator(self.seed, key)
        drawn: list[Passage] = []
        rejected = 0
        while len(drawn) < count:
            chosen = generator.integers(0, len(self.vocabulary), self.length)
            passage = Passage(" ".join(self.vocabulary[i] for i in chosen))
            if accept(passage):
                drawn.append(passage)
                rejected = 0
            elif (rejected := rejected + 1) == _TRIES:
                raise Exhausted(
                    f"RandomWords: {_TRIES} passages of random words in a row hold an answer to {key!r}", len(drawn)
                )
        return drawn


def question_generator(seed: int, key: str) -> np.random.Generator:
    """Return the random generator of the question `key`."""
    check_seed("seed", seed)
    return np.random.default_rng([seed, zlib.crc32(key.encode("utf-8", "surrogatepass"))])


def _shuffled(size: int, generator: np.random.Generator) -> Iterator[int]:
    """Yield 0..size-1 in random order (Fisher and Yates), at a cost that depends on the items taken, not on `size`."""
    moved: dict[int, int] = {}
    for place in range(size):
        other = int(generator.integers(place, size))
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)
