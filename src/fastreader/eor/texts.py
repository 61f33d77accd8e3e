"""The prompts' texts, all replaceable. Fields and order are the paper's (App. C.2), the words our own."""

from __future__ import annotations

import dataclasses
import json
import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastreader.data.types import Passage
from fastreader.errors import InputError

_FIELDS: dict[str, set[str]] = {
    "passage": {"title", "text"},
    "passage_without_title": {"text"},
    "read_question": {"question"},
    "bare_question": {"question"},
    "write": {"question"},
    "compress_query": {"question", "words"},
    "rank_question": {"question"},
}
_OPTIONAL = {"title", "words"}


def _check(name: str, text: str, allowed: set[str]) -> None:
    try:
        found = [part for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise InputError(f"Texts.{name}: {text!r} is not a format string ({error})") from error
    used = {str(key) for _, key, _, _ in found}
    if any(spec or conversion for _, _, spec, conversion in found):
        raise InputError(f"Texts.{name}: fields stand alone, as {{question}}, without ':' or '!'; got {text!r}")
    if extra := sorted(used - allowed):
        raise InputError(f"Texts.{name}: unknown fields {extra}; it may use {sorted(allowed)}")
    if missing := sorted(allowed - used - _OPTIONAL):
        raise InputError(f"Texts.{name}: the field {{{missing[0]}}} must appear in it, got {text!r}")


@dataclass(frozen=True)
class Texts:
    """Pieces of the prompts; each is tokenised alone and owns the white space at its edges.

    Reading: ``read_lead, passages, read_question``; without a document: ``bare_question``. Writing (PK):
    ``write``. Compressing (@CP): ``compress_query, passages, compress_end``. Re-ranking by the question's
    likelihood: ``passage, rank_question``.

    Attributes:
        read_lead: before the passages.
        passage: one passage; fields {title}, {text}.
        passage_without_title: field {text}.
        read_question: after the passages; field {question}.
        bare_question: the whole prompt of ReFree; field {question}.
        answer_lead: what the answer is made to start with; a model without a chat template needs one, such as
            "Answer:".
        write: the whole prompt of PK; field {question}.
        compress_query: before the passages of @CP; fields {question}, {words} (the summary's limit).
        compress_end: after them.
        rank_lead: before the passage when the question's likelihood ranks passages.
        rank_ask: between passage and question there.
        rank_question: what is scored there; field {question}.
    """

    read_lead: str = "Take the following paragraphs to be true:\n\n"
    passage: str = "{title}\n{text}\n\n"
    passage_without_title: str = "{text}\n\n"
    read_question: str = "Give a direct answer, one or a few words, to this question: {question}"
    bare_question: str = "Give a direct answer, one or a few words, to this question: {question}"
    answer_lead: str = ""
    write: str = "Write a background document from which this question can be answered.\n\n{question}"
    compress_query: str = (
        "Sum up the document below truthfully, in {words} words at most. Keep what matters most for answering the "
        "query.\n\nQuery: {question}\n\nDocument:\n"
    )
    compress_end: str = "Summary:"
    rank_lead: str = "Read the passage.\n\n"
    rank_ask: str = "Write a question that it answers."
    rank_question: str = "{question}"

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            text = getattr(self, item.name)
            if not isinstance(text, str):
                raise InputError(f"Texts.{item.name}: expected text, got {type(text).__name__}")
            if item.name in _FIELDS:
                _check(item.name, text, _FIELDS[item.name])

    def of(self, passage: Passage) -> str:
        """`passage` as one piece of a prompt."""
        title = passage.title.strip()
        pattern = self.passage if title else self.passage_without_title
        return pattern.format(title=title, text=passage.text.strip())

    def reading(self, question: str, passages: Sequence[Passage]) -> list[str]:
        """Pieces of the prompt that answers `question` from `passages`, or without any."""
        asked = question.strip()
        if not passages:
            return [self.bare_question.format(question=asked)]
        return [self.read_lead, *(self.of(p) for p in passages), self.read_question.format(question=asked)]

    def to_dict(self) -> dict[str, Any]:
        """All attributes by name."""
        return dataclasses.asdict(self)


_EXAMPLES = """Answer each question in as few words as possible, with a name, a date or a number alone.

Question: who wrote the novel war and peace
Answer: Leo Tolstoy

Question: when did the berlin wall fall
Answer: 9 November 1989

Question: how many strings does a violin have
Answer: four

Question: {question}
"""

SHORT = Texts(read_question=_EXAMPLES, bare_question=_EXAMPLES, answer_lead="Answer:")
"""Three examples of short answers, and the answer begun: for small readers, which write sentences without them."""

NAMED = {"default": Texts(), "short": SHORT}
"""Texts by name."""


def load_texts(found: str | os.PathLike[str] | Mapping[str, Any]) -> Texts:
    """Texts by name, from a file, or from their values.

    Args:
        found: "default", "short" (`SHORT`), or a .json file with some of the attributes of `Texts`, or these
            themselves; the others are the default ones.

    Raises:
        InputError: none of these, or texts that `Texts` refuses.
    """
    if isinstance(found, Mapping):
        return _from_values(found, "")
    if str(found) in NAMED:
        return NAMED[str(found)]
    try:
        values = json.loads(Path(found).read_text(encoding="utf-8"))
    except (OSError, TypeError) as error:
        raise InputError(f"texts: expected {', '.join(NAMED)} or a .json file, got {str(found)!r}") from error
    except ValueError as error:
        raise InputError(f"texts: {found}: not JSON ({error})") from error
    return _from_values(values, f"{found}: ")


def _from_values(values: Any, where: str) -> Texts:
    known = {item.name for item in dataclasses.fields(Texts)}
    if not isinstance(values, Mapping) or not values.keys() <= known:
        raise InputError(f"texts: {where}expected an object with some of the keys {', '.join(sorted(known))}")
    return Texts(**values)
