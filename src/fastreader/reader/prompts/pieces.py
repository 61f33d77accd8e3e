"""TODO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastreader.data import Passage
from fastreader.errors import InputError
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.template import Template


@dataclass(frozen=True)
class PromptPieces:
    """Token ids of one question's pieces.

    Attributes:
        head: everything before the passages, chat opening and beginning of text included; it has a token always.
        question_at: where in `head` the question's tokens start; None when it stands after the passages.
        passages: ``passages[p][place]`` where the template numbers passages, else ``passages[p][0]``.
        opening: before the first passage: what parts it from a question in `head`, else empty.
        separator: after each passage.
        question_lead, question: as in the template; both are empty here when they are part of `head`.
        answer: from the end of the question (or passages) to where the answer starts.
        candidates: each with its end.
        numbered: whether passages have one encoding for each place.
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
        """Tokens of passage `index` standing at `place` (from 0), separator included."""
        return self.passages[index][place if self.numbered else 0] + self.separator

    def body(self, order: Sequence[int]) -> list[int]:
        """Tokens of the passages in `order`, and of what parts them from a question before them."""
        return self.opening + [token for place, index in enumerate(order) for token in self.passage(index, place)]

    def tail(self) -> list[int]:
        """Tokens from the end of the passages to the start of the answer."""
        return self.question_lead + self.question + self.answer


def encode(
    encoder: TextEncoder, template: Template, question: str, passages: Sequence[Passage], candidates: Sequence[str]
) -> PromptPieces:
    """Tokenise the pieces of one question.

    Args:
        encoder: the reader's.
        template: the texts around them.
        question: its text.
        passages: in the retriever's order.
        candidates: answers to score.

    Raises:
        InputError: a candidate or the question has no token, or the template asks for a chat the model lacks.
    """
    frame = None
    if template.chat is not False:
        own_lead = template.answer_lead is not None
        frame = encoder.chat_frame(template.system, template.chat_options, own_lead=own_lead)
    if template.chat and frame is None:
        raise InputError("Template.chat: True, but the model's tokenizer has no chat template")
    if frame:
        before, between, after = frame.before, frame.between, frame.after
        answer_lead, pattern = "", frame.space + "{candidate}"
    else:
        before, between, after, answer_lead, pattern = "", "", "\n", "\nAnswer:", " {candidate}"
    answer_lead = answer_lead if template.answer_lead is None else template.answer_lead
    pattern = pattern if template.candidate is None else template.candidate
    end = after if template.end is None else template.end

    if before:
        head = encoder.start(before, trusted=True) + encoder.piece(template.header, trusted=True)
    else:
        head = encoder.start(template.header, trusted=True) or [encoder.prefix_token()]
    lead = encoder.piece(template.question_lead, trusted=True)
    asked = _outside(encoder, "question", template.question.format(question=question.strip()))
    if not (asked and question.strip()):
        raise InputError(f"question: {question!r} has no token under the template's {template.question!r}")
    question_at, opening = None, []
    if template.question_first:
        question_at = len(head) + len(lead)
        head, lead, asked = head + lead + asked, [], []
        opening = encoder.piece(template.question_end, trusted=True)
    numbered = "{number}" in template.passage + template.passage_without_title
    encoded_candidates = []
    for k, candidate in enumerate(candidates):
        tokens = _outside(encoder, f"candidates[{k}]", pattern.format(candidate=candidate.strip()))
        if not (tokens and candidate.strip()):
            raise InputError(f"candidates[{k}]: {candidate!r} has no token")
        encoded_candidates.append(tokens + encoder.piece(end, trusted=True))
    return PromptPieces(
        head=head,
        question_at=question_at,
        passages=[
            _encode_passage(encoder, template, i, p, len(passages) if numbered else 1) for i, p in enumerate(passages)
        ],
        separator=encoder.piece(template.separator, trusted=True),
        question_lead=lead,
        question=asked,
        answer=encoder.piece(between, trusted=True) + encoder.piece(answer_lead, trusted=True),
        candidates=encoded_candidates,
        numbered=numbered,
        opening=opening,
    )


def _encode_passage(
    encoder: TextEncoder, template: Template, index: int, passage: Passage, places: int
) -> list[list[int]]:
    title = (passage.title or "").strip()
    pattern = template.passage if title else template.passage_without_title
    texts = [pattern.format(title=title, text=passage.text, number=place + 1) for place in range(places)]
    return [_outside(encoder, f"passages[{index}]", text) for text in texts]


def _outside(encoder: TextEncoder, name: str, text: str) -> list[int]:
    """Tokens of text from outside; an error names where it is from."""
    try:
        return encoder.piece(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
