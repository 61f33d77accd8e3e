"""Layouts: the passages of a prompt and their order (Cuconasu et al. 2024, sections 5.1 to 5.4).

Each layout has a name:

==========================  ===================================================================================
``closed_book``             no passages, and another instruction
``gold``                    only the gold passage
``KIND:N:POSITION``         the gold passage and N others of a kind (distracting, hard, relevant, random); position
                            far: gold first; near: gold last, next to the question; mid: at index N // 2 of the
                            N + 1, with N >= 2 so that gold is between others
``retrieved:K``             the K best retrieved passages, the best last, next to the question
``retrieved:K+random:M``    M random passages, then the K best retrieved ones as above
==========================  ===================================================================================

N and M may be ``fill``: as many random passages as the context holds. N and M always take the first passages of the
materials, in their order: prompts of one question then share long prefixes, and computing all layouts together costs
about half of computing each separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, expect, given
from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.noise.labels import Kind, same_text
from fastreader.noise.materials import Materials

POSITIONS = ("far", "mid", "near")
NOISE = ("distracting", "hard", "relevant", "random")
FILL = -1

Fits = Callable[[Sequence[Passage]], bool]


@checked
@dataclass(frozen=True)
class LayoutSpec:
    """The definition of a layout.

    Attributes:
        gold: whether the layout has the gold passage.
        noise: kind of the other passages; "" if there are no others.
        count: number of other passages; FILL for as many as the context holds.
        position: place of the gold passage among the others; "" without gold passage or others.
        retrieved: number of retrieved passages.
    """

    gold: bool = False
    noise: str = ""
    count: int = 0
    position: str = ""
    retrieved: int = 0

    @classmethod
    def parse(cls, name: str) -> LayoutSpec:
        """Parse a name, see the module's table.

        Raises:
            InputError: if `name` is not the name of a layout.
        """
        if name == "closed_book":
            return cls()
        if name == "gold":
            return cls(gold=True)
        if m := re.fullmatch(r"(\w+):(\d+|fill):(\w+)", name):
            noise, count, position = m[1], m[2], m[3]
            if noise in NOISE and position in POSITIONS and (count != "fill" or noise == "random"):
                spec = cls(True, noise, FILL if count == "fill" else int(count), position)
                enough = spec.count not in ((0, 1) if position == "mid" else (0,))
                expect(enough, "layout", "other passages besides the gold one (two for mid), or 'gold'", name)
                return spec
        if (m := re.fullmatch(r"retrieved:(\d+)(?:\+random:(\d+|fill))?", name)) and int(m[1]):
            number = FILL if m[2] == "fill" else int(m[2] or 0)
            return cls(False, "random" if number else "", number, "", int(m[1]))
        raise InputError(
            f"layout: expected 'closed_book', 'gold', 'KIND:N:POSITION' with a kind of {', '.join(NOISE)} and a "
            f"position of {', '.join(POSITIONS)}, 'retrieved:K' or 'retrieved:K+random:M', got {name!r}"
        )

    @property
    def name(self) -> str:
        """Name of the layout, as `parse` reads it."""
        count = "fill" if self.count == FILL else str(self.count)
        if self.retrieved:
            return f"retrieved:{self.retrieved}" + (f"+random:{count}" if self.noise else "")
        if self.gold:
            return f"{self.noise}:{count}:{self.position}" if self.noise else "gold"
        return "closed_book"


@checked
@dataclass(frozen=True)
class Layout:
    """The passages of a prompt, in reading order, and their kinds.

    Attributes:
        name: name of the layout.
        passages: the passages; empty in the closed book.
        kinds: kind of each passage.
    """

    name: str
    passages: tuple[Passage, ...]
    kinds: tuple[Kind, ...]

    @property
    def without_answer(self) -> list[Passage]:
        """The passages that hold no right answer, as far as is known."""
        right = (Kind.GOLD, Kind.RELEVANT)
        return [passage for passage, kind in zip(self.passages, self.kinds, strict=True) if kind not in right]


class MissingPassages(InputError):
    """A question lacks the passages that a layout needs."""


class StillFits(MissingPassages):
    """All drawn random passages fit the context, with room for more."""


@checked
def layout(materials: Materials, spec: str | LayoutSpec, *, fits: Fits | None = None) -> Layout:
    """Return the passages of one layout of one question.

    Args:
        materials: the question's passages by kind.
        spec: the layout, by name or parsed.
        fits: returns whether a prompt of some passages fits the context; required for ``fill``.

    Raises:
        MissingPassages: if the question has no gold passage, or too few of a kind.
        StillFits: a `MissingPassages`: if ``fill`` has used all random passages, and more would fit.
        InputError: if the name is unknown, or ``fill`` comes without `fits`.
    """
    spec = LayoutSpec.parse(spec) if isinstance(spec, str) else spec
    if spec.count == FILL:
        fitting = given(fits, f"layout: {spec.name!r} needs `fits`, to know when the context is full")
        count = _most(len(materials.random), lambda n: fitting(_arrange(materials, spec, n)[0]))
        if count == len(materials.random):
            raise StillFits(
                f"{spec.name}: all {count} random passages of {materials.id!r} fit; draw more to fill the context"
            )
    else:
        count = spec.count
    passages, kinds = _arrange(materials, spec, count)
    return Layout(spec.name, tuple(passages), tuple(kinds))


@checked
def place(gold: Passage, others: Sequence[Passage], position: str) -> list[Passage]:
    """Place the gold passage among others: first ("far"), at index n // 2 ("mid"), or last ("near"), by the question.

    Raises:
        InputError: if `position` is not one of these.
    """
    check_choice("place: position", position, POSITIONS)
    at = {"far": 0, "mid": len(others) // 2, "near": len(others)}[position]
    return [*others[:at], gold, *others[at:]]


@checked
def oracle_grid(
    noise: Iterable[str] = ("distracting", "random"),
    counts: Iterable[int] = (1, 2, 4, 8),
    positions: Iterable[str] = POSITIONS,
) -> list[str]:
    """Return the layouts of the paper's tables 1 and 2: "gold", then every valid kind, count and position."""
    counts, positions = list(counts), list(positions)
    names = [
        f"{kind}:{n}:{position}"
        for kind in noise
        for n in counts
        for position in positions
        if n and not (position == "mid" and n == 1)
    ]
    return ["gold", *names]


@checked
def realistic_grid(retrieved: Iterable[int], random: Iterable[int | str]) -> list[str]:
    """Return the layouts of the paper's tables 3 to 5, of k retrieved and m (or "fill") random passages."""
    random = list(random)
    return [f"retrieved:{k}" + (f"+random:{m}" if m else "") for k in retrieved for m in random]


def _arrange(materials: Materials, spec: LayoutSpec, count: int) -> tuple[list[Passage], list[Kind]]:
    others = _first(materials, spec, count)
    if spec.retrieved:
        _check_enough(materials, spec, "retrieved", spec.retrieved, len(materials.retrieved))
        best = materials.retrieved[: spec.retrieved][::-1]
        passages = [*others, *best]
        return passages, [Kind.RANDOM] * count + list(materials.kinds[: spec.retrieved][::-1])
    if not spec.gold:
        return [], []
    if materials.gold is None:
        raise MissingPassages(f"{spec.name}: no retrieved passage of {materials.id!r} is flagged as gold")
    passages = place(materials.gold, others, spec.position) if others else [materials.gold]
    other = Kind.DISTRACTING if spec.noise == "hard" else Kind(spec.noise) if spec.noise else Kind.RANDOM
    gold_text = same_text(materials.gold)
    return passages, [Kind.GOLD if same_text(p) == gold_text else other for p in passages]


def _first(materials: Materials, spec: LayoutSpec, count: int) -> tuple[Passage, ...]:
    if not spec.noise:
        return ()
    others: tuple[Passage, ...] = getattr(materials, spec.noise)
    _check_enough(materials, spec, spec.noise, count, len(others))
    return others[:count]


def _check_enough(materials: Materials, spec: LayoutSpec, kind: str, needed: int, found: int) -> None:
    if found < needed:
        raise MissingPassages(f"{spec.name}: needs {needed} {kind} passages, {materials.id!r} has {found}")


def _most(limit: int, good: Callable[[int], bool]) -> int:
    """Return the largest good n in 0..limit, below which every n must be good too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low
