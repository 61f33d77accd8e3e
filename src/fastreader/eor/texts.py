"""Hold the texts of the prompts, all replaceable. Fields and order are the paper's (App. C.2), the words our own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fastreader.core.checked import checked
from fastreader.core.checks import require
from fastreader.data.types import Passage
from fastreader.reader.prompts.texts import PromptTexts


@checked
@dataclass(frozen=True)
class Texts(PromptTexts):
    """Pieces of the prompts.

    Each is tokenised by itself and owns the white space at its edges. Reading: ``read_lead, passages, read_question``;
    without a document: ``bare_question``. Writing (PK): ``write``. Compressing (@CP): ``compress_query, passages,
    compress_end``. Re-ranking by the question's likelihood: ``rank_lead, passage, rank_ask, rank_question``.

    Attributes:
        read_lead: before the passages.
        passage: one passage; fields {title}, {text}.
        passage_without_title: field {text}.
        read_question: after the passages; field {question}.
        bare_question: the whole prompt of ReFree; field {question}.
        answer_lead: the beginning of the answer, put into the prompt; a model without a chat template needs one, such
            as "Answer:".
        write: the whole prompt of PK; field {question}.
        compress_query: before the passages of @CP; fields {question}, {words} (the summary's limit).
        compress_end: after them.
        rank_lead: before the passage when the question's likelihood ranks passages.
        rank_ask: between passage and question there.
        rank_question: the scored text there; field {question}.
    """

    OPTIONAL: ClassVar = {"passage": {"title"}, "compress_query": {"words"}}

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

    def of(self, passage: Passage) -> str:
        """Return `passage` as one piece of a prompt."""
        title = passage.title.strip()
        pattern = self.passage if title else self.passage_without_title
        return pattern.format(title=title, text=passage.text.strip())

    def reading(self, question: str, passages: Sequence[Passage]) -> list[str]:
        """Return the pieces of the prompt that answers `question` from `passages`, or without passages."""
        asked = question.strip()
        if not passages:
            return [self.bare_question.format(question=asked)]
        return [self.read_lead, *(self.of(p) for p in passages), self.read_question.format(question=asked)]


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
"""Three examples of short answers, and the beginning of the answer: small readers write sentences without them."""

NAMED = {"default": Texts(), "short": SHORT}
"""Texts by name."""


@checked
def load_texts(found: str | os.PathLike[str] | Mapping[str, Any]) -> Texts:
    """Return texts by name, from a file, or from values.

    Args:
        found: "default", "short" (`SHORT`), a file that `Texts.load` reads, or some attributes of `Texts` by name; the
            others keep their defaults.

    Raises:
        InputError: if `found` is anything else, or a text is invalid.
    """
    if isinstance(found, Mapping):
        return Texts.from_dict(found)
    if str(found) in NAMED:
        return NAMED[str(found)]
    exists = isinstance(found, (str, os.PathLike)) and Path(found).is_file()
    require(exists, f"texts: expected {', '.join(NAMED)} or a .toml or .json file, got {str(found)!r}")
    return Texts.load(found)
