"""Layouts: which passages stand in a prompt, and in which order (Cuconasu et al. 2024, sections 5.1 to 5.4).

A layout has a name, which is also how it is asked for:

==========================  ===================================================================================
``closed_book``             no passages, and another instruction
``gold``                    the gold passage alone
``KIND:N:POSITION``         the gold passage and N others of a kind (distracting, hard, relevant, random); position
                            far: gold first; near: gold last, next to the question; mid: at index N // 2 of the
                            N + 1, which needs N of at least 2 to be between others
``retrieved:K``             the K best retrieved passages, the best last, next to the question
``retrieved:K+random:M``    M random passages first, then those
==========================  ===================================================================================

N and M may be ``fill``: as many random passages as the context holds. What N and M take is always the first of the
materials' passages, in their order: prompts of one question share long prefixes, and computing all layouts together
costs about half of computing each alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.noise.labels import Kind, same_text
from fastreader.noise.materials import Materials

POSITIONS = ("far", "mid", "near")
NOISE = ("distracting", "hard", "relevant", "random")
FILL = -1

Fits = Callable[[Sequence[Passage]], bool]


@dataclass(frozen=True)
class LayoutSpec:
    """A layout as asked for.

    Attributes:
        gold: whether the gold passage is in it.
        noise: kind of the other passages; "" for none.
        count: how many of them; FILL for as many as the context holds.
        position: where the gold passage is among them; "" where it is alone or not there.
        retrieved: how many retrieved passages.
    """

    gold: bool = False
    noise: str = ""
    count: int = 0
    position: str = ""
    retrieved: int = 0

    @classmethod
    def parse(cls, name: str) -> LayoutSpec:
        """Read a name as the module describes it.

        Raises:
            InputError: it is none.
        """
        if name == "closed_book":
            return cls()
        if name == "gold":
            return cls(gold=True)
        if m := re.fullmatch(r"(\w+):(\d+|fill):(\w+)", name):
            noise, count, position = m[1], m[2], m[3]
            if noise in NOISE and position in POSITIONS and (count != "fill" or noise == "random"):
                spec = cls(True, noise, FILL if count == "fill" else int(count), position)
                if spec.count == 0 or (position == "mid" and spec.count == 1):
                    raise InputError(f"layout: {name!r} puts the gold passage between nothing; ask for 'gold', or more")
                return spec
        if (m := re.fullmatch(r"retrieved:(\d+)(?:\+random:(\d+|fill))?", name)) and int(m[1]):
            number = FILL if m[2] == "fill" else int(m[2] or 0)
            return cls(False, "random" if number else "", number, "", int(m[1]))
        raise InputError(
            f"layout: {name!r} is none; expected 'closed_book', 'gold', 'KIND:N:POSITION' with a kind of "
            f"{', '.join(NOISE)} and a position of {', '.join(POSITIONS)}, 'retrieved:K' or 'retrieved:K+random:M'"
        )

    @property
    def name(self) -> str:
        """What `parse` reads."""
        count = "fill" if self.count == FILL else str(self.count)
        if self.retrieved:
            return f"retrieved:{self.retrieved}" + (f"+random:{count}" if self.noise else "")
        if self.gold:
            return f"{self.noise}:{count}:{self.position}" if self.noise else "gold"
        return "closed_book"


@dataclass(frozen=True)
class Layout:
    """The passages of a prompt, in reading order, and what each is to the question.

    Attributes:
        name: as asked for.
        passages: none in the closed book.
        kinds: of each passage.
    """

    name: str
    passages: tuple[Passage, ...]
    kinds: tuple[Kind, ...]


class MissingPassages(InputError):
    """A question lacks the passages that a layout needs."""


class StillFits(MissingPassages):
    """All random passages that were drawn fit the context, and more would."""


def layout(materials: Materials, spec: str | LayoutSpec, *, fits: Fits | None = None) -> Layout:
    """The passages of one layout of one question; pure.

    Args:
        materials: the question's passages by kind.
        spec: the layout, by name or parsed.
        fits: whether a prompt of these passages fits the context; for ``fill``.

    Raises:
        MissingPassages: the question has no gold passage, or too few of a kind.
        StillFits: a `MissingPassages`: all random passages are used up, and more would fit (``fill``).
        InputError: an unknown name, or ``fill`` without `fits`.
    """
    spec = LayoutSpec.parse(spec) if isinstance(spec, str) else spec
    if spec.count == FILL:
        if fits is None:
            raise InputError(f"layout: {spec.name!r} needs fits, to know when the context is full")
        count = _most(len(materials.random), lambda n: fits(_arrange(materials, spec, n)[0]))
        if count == len(materials.random):
            raise StillFits(
                f"{spec.name}: all {count} random passages of {materials.id!r} fit; draw more to fill the context"
            )
    else:
        count = spec.count
    passages, kinds = _arrange(materials, spec, count)
    return Layout(spec.name, tuple(passages), tuple(kinds))


def place(gold: Passage, others: Sequence[Passage], position: str) -> list[Passage]:
    """The gold passage among others: first ("far"), at index n // 2 ("mid"), or last ("near"), next to the question.

    Raises:
        InputError: another position.
    """
    if position not in POSITIONS:
        raise InputError(f"place: position must be one of {', '.join(POSITIONS)}, got {position!r}")
    at = {"far": 0, "mid": len(others) // 2, "near": len(others)}[position]
    return [*others[:at], gold, *others[at:]]


def oracle_grid(
    noise: Iterable[str] = ("distracting", "random"),
    counts: Iterable[int] = (1, 2, 4, 8),
    positions: Iterable[str] = POSITIONS,
) -> list[str]:
    """Names of the layouts of the paper's tables 1 and 2: "gold", then every kind, count and position there is."""
    counts, positions = list(counts), list(positions)
    names = [
        f"{kind}:{n}:{position}"
        for kind in noise
        for n in counts
        for position in positions
        if n and not (position == "mid" and n == 1)
    ]
    return ["gold", *names]


def realistic_grid(retrieved: Iterable[int], random: Iterable[int | str]) -> list[str]:
    """Names of the layouts of the paper's tables 3 to 5: k retrieved and m random passages; m may be "fill"."""
    random = list(random)
    return [f"retrieved:{k}" + (f"+random:{m}" if m else "") for k in retrieved for m in random]


def _arrange(materials: Materials, spec: LayoutSpec, count: int) -> tuple[list[Passage], list[Kind]]:
    others = _first(materials, spec, count)
    if spec.retrieved:
        _check(materials, spec, "retrieved", spec.retrieved, len(materials.retrieved))
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
    of_kind: dict[str, tuple[Passage, ...]] = {
        "distracting": materials.distracting,
        "hard": materials.hard,
        "relevant": materials.relevant,
        "random": materials.random,
    }
    _check(materials, spec, spec.noise, count, len(of_kind[spec.noise]))
    return of_kind[spec.noise][:count]


def _check(materials: Materials, spec: LayoutSpec, kind: str, wanted: int, there: int) -> None:
    if there < wanted:
        raise MissingPassages(f"{spec.name}: needs {wanted} {kind} passages, {materials.id!r} has {there}")


def _most(limit: int, good: Callable[[int], bool]) -> int:
    """Largest n in 0..limit that is good, where all below a good one are good too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low
