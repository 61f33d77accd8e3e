"""Materials: one question and the passages for its layouts."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_seed, expect
from fastreader.data.types import Example, Passage
from fastreader.noise.hard import swapped_passages
from fastreader.noise.labels import Kind, has_answer, label, question_key, same_text
from fastreader.noise.sources import MOST_DRAWN, RandomSource


@checked
@dataclass(frozen=True)
class Materials:
    """One question and its passages by the disjoint kinds gold, relevant, distracting, hard and random.

    Attributes:
        question, answers: of the example.
        id: key of the question: its id, or its text if it has no id.
        retrieved: the retriever's passages, best first, without repeats.
        kinds: kind of each retrieved passage.
        gold: the annotated passage; None if no retrieved passage is flagged.
        relevant, distracting: the retrieved passages of that kind, best first.
        hard: hard distractors, see `gather`.
        random: random passages, in the order drawn.
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
        """Digest of the gold passage's text, or None: questions that share a gold passage are not independent."""
        if self.gold is None:
            return None
        return hashlib.sha256("\n".join(same_text(self.gold)).encode("utf-8")).hexdigest()[:16]


@checked
def by_title(passages: Iterable[Passage]) -> dict[str, list[Passage]]:
    """Return passages by title, without untitled ones."""
    titles: defaultdict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        if title := same_text(passage)[0]:
            titles[title].append(passage)
    return dict(titles)


@checked
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
    """Label a question's passages, draw random ones and make hard distractors.

    Hard distractors are, in this order: the gold passage with its answer swapped once, passages of the gold passage's
    title without an answer, the gold passage with its answer swapped again. Random passages hold no answer and
    were not retrieved. They do not depend on `hard_count`, because no layout combines the two kinds.

    Args:
        example: the question with its retrieved passages.
        random: source of random passages; None draws none.
        random_count: number of random passages.
        titles: a pool `by_title`, to look up passages of the same title.
        others: other questions, whose answers are swapped in.
        hard_count: maximum number of hard distractors.
        seed: seed of the swaps.

    Raises:
        InputError: if the example has no answers or no passages.
        Exhausted: an `InputError`: if `random` has fewer than `random_count` passages.
    """
    key = question_key(example)
    check_seed("seed", seed)
    check_int("random_count", random_count, 0, MOST_DRAWN)
    check_int("hard_count", hard_count, 0, MOST_DRAWN)
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
    """Return retrieved passages and their kinds, keeping the first of equal ones, gold if any of them is."""
    expect(bool(example.passages), f"gather: passages of {question_key(example)!r}", "at least one", example.passages)
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
