"""The reader answers every retriever's prompt in one generation on the tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from fastreader.answers import normalise
from fastreader.eor.texts import Texts
from fastreader.eor.types import Answers, Retrieval
from fastreader.errors import InputError
from fastreader.protocol import ReaderProtocol, TextOrTokens

_REFUSALS = re.compile(
    r"""
    \b(?:i|we)\s+(?:do\s+not|don't|dont|cannot|can't|cant|could\s+not|couldn't|am\s+not\s+able|am\s+unable|have\s+no)\b
    | \b(?:is|are|was|were|does|do)(?:\s+not|n't)\s+(?:\w+\s+){0,3}?
      (?:mention|specif|provid|stat|given|known|contain|available|enough|clear|possible)
    | \bno\s+(?:answer|information|mention)\b
    | \b(?:unanswerable|cannot\s+be\s+(?:answered|determined)|unable\s+to\s+(?:answer|determine|find|provide))\b
    | \bas\s+an\s+ai\b | \bi(?:'m|\s+am)\s+sorry\b | \bnot\s+enough\s+information\b
    | ^\W*(?:unknown|none|n/?a|not\s+(?:mentioned|specified|provided|stated|given|known|sure|available))\W*$
    """,
    re.IGNORECASE | re.VERBOSE,
)


def is_refusal(text: str) -> bool:
    """Whether `text` says that there is no answer, by common English phrases.

    >>> is_refusal("I don't know."), is_refusal("Not mentioned"), is_refusal("The Unknown Soldier")
    (True, True, False)
    """
    return _REFUSALS.search(text.replace("’", "'")) is not None


@lru_cache(maxsize=1 << 16)
def is_answer(text: str | None) -> bool:
    """Whether `text` says anything: not None, not empty once normalised (as "The" is), no refusal."""
    return text is not None and bool(normalise(text)) and not is_refusal(text)


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
    written = reader.generate(asked, max_new_tokens=max_new_tokens, stop=("\n",)) if asked else []
    found = [first_line(generated[0].text) for generated in written]
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


def first_line(text: str) -> str:
    """The first line of `text` that is not blank, without white space at its edges; "" where there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
