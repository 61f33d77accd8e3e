"""Check question, passages and candidates, as callers pass them to every method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fastreader.core.checked import accept, kind_of
from fastreader.core.checks import check_text, check_texts, expect
from fastreader.data.documents import PassageLike, as_passages
from fastreader.data.types import Example

_TEXTS = kind_of(Iterable[str])


def make_example(
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    *,
    where: str = "",
) -> Example:
    """Return the arguments of a call as one Example, whose question and passages can be read.

    Args:
        question: a question, or an `Example` with its passages.
        passages: anything that `as_passages` takes, in the retriever's order; None with an `Example`.
        candidates: answers that replace the example's own; None keeps those.
        where: name of the example, for messages.

    Raises:
        InputError: if the question is empty, there are no passages, a passage is empty, passages come twice, or
            `candidates` is not a list.
    """
    at = f"{where}: " if where else ""
    own = question if isinstance(question, Example) else None
    if own is not None:
        expect(passages is None, f"{at}passages", "None with an Example as the question, which has passages", passages)
        passages = own.passages
    check_text(f"{at}question", question if own is None else own.question)
    found = as_passages([] if passages is None else passages, name=f"{at}passages", allow_blank=False)
    expect(bool(found), f"{at}passages", "at least one passage", found)
    if candidates is not None:
        answers = list(accept(f"{at}candidates", candidates, _TEXTS))
    else:
        answers = [] if own is None else list(own.candidates)
    if own is None:
        return Example(question, found, candidates=answers)  # type: ignore[arg-type]  # a text, as checked
    return replace(own, passages=found, candidates=answers)


def check_candidates(candidates: Sequence[str], question_only: bool, where: str) -> None:
    """Check answers to score: texts that are not empty, at least one of them unless `question_only`."""
    enough = question_only or len(candidates) > 0
    expected = "at least one candidate (question_only=True scores the question without any)"
    expect(enough, f"{where}: candidates", expected, candidates)
    check_texts(f"{where}: candidates", candidates)


def keyed(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples with unique ids: the index of an example without one, and a suffix "#2" for a repeated id.

    Raises:
        InputError: if an item is not an Example.
    """
    taken: dict[str, int] = {}
    for index, example in enumerate(examples):
        expect(isinstance(example, Example), f"examples[{index}]", "an Example", example)
        key = name = str(index) if example.id is None else example.id
        while key in taken:
            taken[name] += 1
            key = f"{name}#{taken[name]}"
        taken[key] = 1
        yield replace(example, id=key)
