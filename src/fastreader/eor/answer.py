"""The reader answers every retriever's prompt in one generation on the tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fastreader.core.protocol import ReaderProtocol, TextOrTokens
from fastreader.eor.texts import Texts
from fastreader.eor.types import Answers, Retrieval
from fastreader.errors import InputError
from fastreader.statistics.answers import cached_normalise

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
"""What counts as a refusal; docs/eor.md has the list in words. A negation alone is none: "We Don't Talk Anymore"."""


def is_refusal(text: str) -> bool:
    """Whether `text` says that there is no answer, by common English phrases.

    >>> is_refusal("I don't know."), is_refusal("Not mentioned"), is_refusal("The Unknown Soldier")
    (True, True, False)
    """
    return _REFUSALS.search(text.replace("’", "'")) is not None


@lru_cache(maxsize=1 << 16)
def is_answer(text: str | None) -> bool:
    """Whether `text` says anything: not None, not empty once normalised (as "The" is), no refusal."""
    return text is not None and bool(cached_normalise(text)) and not is_refusal(text)


def answer(
    reader: ReaderProtocol,
    retrievals: Sequence[Retrieval],
    *,
    texts: Texts | None = None,
    max_new_tokens: int = 32,
    keep_documents: bool = False,
) -> list[Answers]:
    """Ask the reader once a retriever and question, all in one generation.

    Equal prompts, as where two retrievers found the same, are generated once.

    Args:
        reader: answers, greedily.
        retrievals: Q results of `Retrievers.retrieve`.
        texts: of the prompts.
        max_new_tokens: of an answer.
        keep_documents: keep what was read with the answers, for the error analysis.

    Returns:
        Q sets of answers; a retriever without a document because of a failure has the text None.

    Raises:
        ContextOverflowError: a prompt is longer than the model's context; smaller `Limits` shorten it.
    """
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    words = texts or Texts()
    prompts: dict[object, int] = {}
    asked: list[TextOrTokens] = []
    places: list[list[int | None]] = []
    for retrieval in retrievals:
        row: list[int | None] = []
        for document in retrieval.documents:
            if document.failure is not None:
                row.append(None)
                continue
            prompt = reader.prompt(words.reading(retrieval.question, document.passages), lead=words.answer_lead)
            key = prompt if isinstance(prompt, str) else tuple(prompt)
            if key not in prompts:
                prompts[key] = len(asked)
                asked.append(prompt)
            row.append(prompts[key])
        places.append(row)
    found = [lines[0] for lines in write_lines(reader, asked, max_new_tokens=max_new_tokens)]
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


def write_lines(
    reader: ReaderProtocol,
    prompts: Sequence[TextOrTokens],
    *,
    max_new_tokens: int,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[list[str]]:
    """`n` texts of one line after each prompt.

    Writing stops at the end of a line, so that nothing is written to be thrown away. Prompts after which a text starts
    with an empty line are written once more without that stop; equal prompts draw equally, so it is the same text.

    Args:
        reader: writes.
        prompts: P of them.
        max_new_tokens: of a text.
        n: texts a prompt.
        temperature, seed: as `ReaderProtocol.generate`.

    Returns:
        P lists of n lines (`first_line`).
    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "n": n, "temperature": temperature, "seed": seed}
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
    """The first line of `text` that is not blank, without white space at its edges; "" where there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
