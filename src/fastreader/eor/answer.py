"""Answer the prompts of all retrievers in one generation on the prefix tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_int
from fastreader.core.protocol import ReaderProtocol, TextOrTokens
from fastreader.eor.texts import Texts
from fastreader.eor.types import Answers, Retrieval
from fastreader.statistics.measures.answers import cached_normalise

_REFUSALS = re.compile(
    r"""
    \b(?:i|we)\s+(?:do\s+not|don't|dont|cannot|can't|cant|could\s+not|couldn't)\s+(?:\w+\s+)?
      (?:know|find|answer|see|determine|provide|tell|say|have\s+(?:an?|any|the|that|this|enough|access|information))\b
    | \b(?:i|we|i'm|we're)\s+(?:am\s+|are\s+)?(?:not\s+able|unable|not\s+sure)\b
    | \b(?:i|we)\s+have\s+no\s+(?:answer|information|idea|knowledge|way)\b
    | \b(?:is|are|was|were|does|do)(?:\s+not|n't)\s+(?:\w+\s+){0,3}?
      (?:mention|specif|provid|stat|given|known|contain|available|enough|clear|possible)
    | \bno\s+(?:answer|information|mention)\s+(?:is|was|about|of|on|in|available|found|given|provided|to)\b
    | \b(?:unanswerable|cannot\s+be\s+(?:answered|determined)|unable\s+to\s+(?:answer|determine|find|provide))\b
    | \bas\s+an\s+ai\b | \b(?:i'm|i\s+am)\s+sorry\b | \bnot\s+enough\s+information\b
    | ^\W*(?:unknown|none|n/?a|no\s+(?:answer|information|mention)
      |not\s+(?:mentioned|specified|provided|stated|given|known|sure|available))\W*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Refusals; docs/eor.md lists them in words. A negation on its own does not match: "We Don't Talk Anymore"."""


@checked
def is_refusal(text: str) -> bool:
    """Return whether `text` says that there is no answer, by common English phrases.

    >>> is_refusal("I don't know."), is_refusal("Not mentioned"), is_refusal("The Unknown Soldier")
    (True, True, False)
    """
    return _REFUSALS.search(text.replace("’", "'")) is not None


@checked
@lru_cache(maxsize=1 << 16)
def is_answer(text: str | None) -> bool:
    """Return whether `text` is an answer: not None, not empty once normalised (as "The" is), not a refusal."""
    return text is not None and bool(cached_normalise(text)) and not is_refusal(text)


@checked
def answer(
    reader: ReaderProtocol,
    retrievals: Sequence[Retrieval],
    *,
    texts: Texts | None = None,
    max_new_tokens: int = 32,
    keep_documents: bool = False,
) -> list[Answers]:
    """Answer each question once per retriever, all in one greedy generation.

    Equal prompts, as when two retrievers found the same passages, are generated once.

    Args:
        reader: the model that answers.
        retrievals: Q results of `Retrievers.retrieve`.
        texts: texts of the prompts; None uses the default `Texts`.
        max_new_tokens: maximum length of an answer in tokens.
        keep_documents: keep the documents with the answers, for the error analysis.

    Returns:
        Q sets of answers; the text is None if the retriever failed.

    Raises:
        InputError: if `max_new_tokens` < 1.
        ContextOverflowError: if a prompt is longer than the model's context; smaller `Limits` shorten prompts.
    """
    check_int("max_new_tokens", max_new_tokens)
    words = texts or Texts()
    known: dict[object, int] = {}
    prompts: list[TextOrTokens] = []
    places: list[list[int | None]] = []
    for retrieval in retrievals:
        row: list[int | None] = []
        for document in retrieval.documents:
            if document.failure is not None:
                row.append(None)
                continue
            prompt = reader.prompt(words.reading(retrieval.question, document.passages), lead=words.answer_lead)
            place = known.setdefault(prompt if isinstance(prompt, str) else tuple(prompt), len(prompts))
            if place == len(prompts):
                prompts.append(prompt)
            row.append(place)
        places.append(row)
    found = [lines[0] for lines in write_lines(reader, prompts, max_new_tokens=max_new_tokens)]
    return [
        Answers(
            question=retrieval.question,
            retrievers=[document.retriever for document in retrieval.documents],
            texts=[None if place is None else found[place] for place in row],
            failures={d.retriever: d.failure for d in retrieval.documents if d.failure is not None},
            documents=list(retrieval.documents) if keep_documents else [],
            right=retrieval.right,
            id=retrieval.id,
        )
        for retrieval, row in zip(retrievals, places, strict=True)
    ]


def write_lines(reader: ReaderProtocol, prompts: Sequence[TextOrTokens], **options: Any) -> list[list[str]]:
    """Generate texts of one line after each prompt.

    Generation stops at the end of a line. Prompts whose text starts with an empty line are generated again without that
    stop; equal prompts draw equally, so the text is the same.

    Args:
        reader: the model that generates.
        prompts: P of them.
        options: options of `ReaderProtocol.generate`, such as `max_new_tokens` and `n`; greedy by default.

    Returns:
        P lists of n lines (`first_line`).
    """
    if not prompts:
        return []
    written = list(reader.generate(prompts, stop=("\n",), **options))
    blank = [i for i, row in enumerate(written) if any(g.finish_reason == "stop" and not g.text.strip() for g in row)]
    if blank:
        again = reader.generate([prompts[i] for i in blank], **options)
        for i, row in zip(blank, again, strict=True):
            written[i] = row
    return [[first_line(g.text) for g in row] for row in written]


def first_line(text: str) -> str:
    """Return the first line of `text` that is not blank, stripped, or "" if all are blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
