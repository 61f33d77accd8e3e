"""What the layouts of one question are made of."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.noise.hard import swapped_passages
from fastreader.noise.labels import Kind, has_answer, label, same_text
from fastreader.noise.sources import RandomSource


@dataclass(frozen=True)
class Materials:
    """One question and its passages by kind; no passage is in two of gold, relevant, distracting, hard and random.

    Attributes:
        question, answers: as in the example.
        id: of the question; its text where it has none.
        retrieved: the retriever's passages, best first, without repeats.
        kinds: of each retrieved passage.
        gold: the annotated passage; None where no retrieved passage is flagged.
        relevant, distracting: the retrieved passages of that kind, best first.
        hard: distractors made or looked up, see `gather`.
        random: as drawn.
    """

    question: str
    answers: tuple[str, ...]
    id: str
    retrieved: tuple[Passage, ...]
    kinds: tuple[Kind, ...]
    gold: Passage | None
    relevant: tuple[Passage, ...]
    distracting: tuple[Passage, ...]
    hard: tuple[Passage, ...]
    random: tuple[Passage, ...]

    @property
    def cluster(self) -> str | None:
        """Identifies the gold passage by its text: questions that share one are not independent."""
        if self.gold is None:
            return None
        return hashlib.sha256("\n".join(same_text(self.gold)).encode("utf-8")).hexdigest()[:16]


def by_title(passages: Iterable[Passage]) -> dict[str, list[Passage]]:
    """Passages that have a title, by it."""
    titles: defaultdict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        if title := same_text(passage)[0]:
            titles[title].append(passage)
    return dict(titles)


def gather(
    example: Example,
    *,
    random: RandomSource | None = None,
    random_count: int = 8,
    titles: Mapping[str, Sequence[Passage]] | None = None,
    others: Sequence[Example] = (),
    hard_count: int = 0,
    seed: int = 0,
) -> Materials:
    """Label a question's passages and get the others its layouts need.

    Hard distractors are, in this order: the gold passage with its answer swapped once, passages of the gold passage's
    title without an answer, the gold passage with its answer swapped for others. Random passages hold no answer and
    were not retrieved; they do not depend on how many hard distractors are wanted, which no layout has beside them.

    Args:
        example: the question with its retrieved passages.
        random: where random passages come from.
        random_count: how many to draw.
        titles: a pool `by_title`, to look up passages of the same title.
        others: other questions, whose answers are swapped in.
        hard_count: hard distractors wanted; there may be fewer.
        seed: of the swaps.

    Raises:
        InputError: the example has no answers or passages.
        Exhausted: an `InputError`: `random` cannot draw that many.
    """
    key = example.id if example.id is not None else example.question
    retrieved, kinds = _without_repeats(example)
    of_kind = {kind: tuple(p for p, k in zip(retrieved, kinds, strict=True) if k is kind) for kind in Kind}
    gold = next(iter(of_kind[Kind.GOLD]), None)
    hard: list[Passage] = []
    if gold is not None and hard_count:
        taken = {same_text(p) for p in retrieved}
        related = [
            p
            for p in (titles or {}).get(same_text(gold)[0], ())
            if same_text(p) not in taken and not has_answer(p, example.answers)
        ]
        swaps = swapped_passages(gold, example.question, example.answers, others, key=key, seed=seed)
        hard = _distinct(itertools.chain(itertools.islice(swaps, 1), related, swaps), hard_count)
    seen = {same_text(p) for p in retrieved}

    def unrelated(passage: Passage) -> bool:
        if same_text(passage) in seen or has_answer(passage, example.answers):
            return False
        seen.add(same_text(passage))
        return True

    return Materials(
        question=example.question,
        answers=tuple(example.answers),
        id=key,
        retrieved=tuple(retrieved),
        kinds=tuple(kinds),
        gold=gold,
        relevant=(*of_kind[Kind.GOLD][1:], *of_kind[Kind.RELEVANT]),
        distracting=of_kind[Kind.DISTRACTING],
        hard=tuple(hard),
        random=tuple(random.draw(random_count, key, unrelated)) if random is not None else (),
    )


def _without_repeats(example: Example) -> tuple[list[Passage], list[Kind]]:
    """Retrieved passages and their kinds; of equal ones the first stays, and is gold where any of them is."""
    if not example.passages:
        raise InputError(f"gather: the example {example.id or example.question!r} has no passages")
    places: dict[tuple[str, str], int] = {}
    passages: list[Passage] = []
    kinds: list[Kind] = []
    for passage, kind in zip(example.passages, label(example), strict=True):
        place = places.setdefault(same_text(passage), len(passages))
        if place == len(passages):
            passages.append(passage)
            kinds.append(kind)
        elif kind is Kind.GOLD:
            kinds[place] = kind
    return passages, kinds


def _distinct(passages: Iterable[Passage], count: int) -> list[Passage]:
    distinct: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        distinct.setdefault(same_text(passage), passage)
        if len(distinct) == count:
            break
    return list(distinct.values())
