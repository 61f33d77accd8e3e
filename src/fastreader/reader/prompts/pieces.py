"""PromptPieces: the token ids of a question, its passages and its candidates, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastreader.core.checks import located
from fastreader.data import Passage
from fastreader.errors import InputError
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.template import Template


@dataclass(frozen=True)
class PromptPieces:
    """Token ids of one question's pieces.

    Attributes:
        head: everything before the passages, chat opening and beginning of text included; never empty.
        question_at: where in `head` the question's tokens start; None if it follows the passages.
        passages: ``passages[p][place]`` if the template numbers passages, else ``passages[p][0]``.
        separator: after each passage.
        question_lead, question: as in the template; both are empty if they are part of `head`.
        answer: from the end of the question (or passages) to where the answer starts.
        candidates: each with its end.
        numbered: whether passages have one encoding for each place.
        opening: between a question in `head` and the first passage; else empty.
    """

    head: list[int]
    question_at: int | None
    passages: list[list[list[int]]]
    separator: list[int]
    question_lead: list[int]
    question: list[int]
    answer: list[int]
    candidates: list[list[int]]
    numbered: bool
    opening: list[int] = field(default_factory=list)

    def passage(self, index: int, place: int) -> list[int]:
        """Return the tokens of passage `index` at `place` (from 0), with the separator."""
        return self.passages[index][place if self.numbered else 0] + self.separator

    def body(self, order: Sequence[int]) -> list[int]:
        """Return the tokens of the passages in `order`, after what separates them from a question before them."""
        tokens = list(self.opening)
        for place, index in enumerate(order):
            tokens += self.passages[index][place if self.numbered else 0]
            tokens += self.separator
        return tokens

    def body_length(self, order: Sequence[int]) -> int:
        """Return the number of tokens of `body`."""
        length = len(self.opening) + len(order) * len(self.separator)
        for place, index in enumerate(order):
            length += len(self.passages[index][place if self.numbered else 0])
        return length

    def ends(self, first: int) -> tuple[int, ...]:
        """Return how many tokens a prompt's header takes, and the header with the first passage.

        What the model computes for these tokens does not depend on the question. None are returned if the template puts
        the question first.

        Args:
            first: number of tokens of the first passage with the separator; 0 without passages.
        """
        if self.question_at is not None:
            return ()
        return (len(self.head), len(self.head) + first) if first else (len(self.head),)

    def tail(self) -> list[int]:
        """Return the tokens from the end of the passages to the start of the answer."""
        return self.question_lead + self.question + self.answer


def encode(
    encoder: TextEncoder, template: Template, question: str, passages: Sequence[Passage], candidates: Sequence[str]
) -> PromptPieces:
    """Tokenise the pieces of one question, in one call of the tokenizer.

    Args:
        encoder: the reader's.
        template: the texts around them.
        question: its text.
        passages: in the retriever's order.
        candidates: answers to score.

    Raises:
        InputError: if a candidate or the question has no token, or the template requires a chat that the model lacks.
    """
    frame = None
    if template.chat is not False:
        own_lead = template.answer_lead is not None
        frame = encoder.chat_frame(template.system, template.chat_options, own_lead=own_lead)
    if template.chat and frame is None:
        raise InputError("Template.chat: True, but the model's tokenizer has no chat template")
    if frame:
        between, after = frame.between, frame.after
        answer_lead, pattern = "", frame.space + "{candidate}"
    else:
        between, after, answer_lead, pattern = "", "\n", "\nAnswer:", " {candidate}"
    answer_lead = answer_lead if template.answer_lead is None else template.answer_lead
    pattern = pattern if template.candidate is None else template.candidate
    end = after if template.end is None else template.end
    fresh = frame is not None and frame.fresh

    if frame:
        head = encoder.closed(frame.opening, template.header, trusted=True)
    else:
        head = encoder.start(template.header, trusted=True)
    head = head or [encoder.prefix_token()]
    lead = encoder.piece(template.question_lead, trusted=True)
    numbered = "{number}" in template.passage + template.passage_without_title
    places = len(passages) if numbered else 1
    named = [("question", template.question.format(question=question.strip()))]  # of all texts from outside
    for index, passage in enumerate(passages):
        title = (passage.title or "").strip()
        form = template.passage if title else template.passage_without_title
        for place in range(places):
            text = form.format(title=title, text=passage.text, number=place + 1)
            named.append((f"passages[{index}]", text))
    for index, candidate in enumerate(candidates):
        named.append((f"candidates[{index}]", pattern.format(candidate=candidate.strip())))
    _, texts = zip(*named, strict=True)
    try:
        tokens = encoder.pieces(texts)
    except InputError:
        _name_the_text(encoder, named)
        raise
    asked = tokens[0]
    if not (asked and question.strip()):
        raise InputError(f"question: {question!r} has no token under the template's {template.question!r}")
    encoded_passages, read = [], 1
    for _ in passages:
        encoded_passages.append(tokens[read : read + places])
        read += places
    after_candidate = encoder.piece(end, trusted=True)
    encoded_candidates = []
    if fresh and not answer_lead:
        tokens[read:] = [encoder.piece(text, first=True) for text in texts[read:]]
    for index, (candidate, encoded) in enumerate(zip(candidates, tokens[read:], strict=True)):
        if not (encoded and candidate.strip()):
            raise InputError(f"candidates[{index}]: {candidate!r} has no token")
        encoded_candidates.append(encoded + after_candidate)
    question_at, opening = None, []
    if template.question_first:
        question_at = len(head) + len(lead)
        head, lead, asked = head + lead + asked, [], []
        opening = encoder.piece(template.question_end, trusted=True)
    return PromptPieces(
        head=head,
        question_at=question_at,
        passages=encoded_passages,
        separator=encoder.piece(template.separator, trusted=True),
        question_lead=lead,
        question=asked,
        answer=encoder.piece(between, trusted=True) + encoder.piece(answer_lead, first=fresh, trusted=True),
        candidates=encoded_candidates,
        numbered=numbered,
        opening=opening,
    )


def _name_the_text(encoder: TextEncoder, named: Sequence[tuple[str, str]]) -> None:
    """Raise InputError with the name of the first text that cannot be encoded."""
    for name, text in named:
        with located(name):
            encoder.piece(text)
