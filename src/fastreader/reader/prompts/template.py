"""Template: the texts of a prompt around passages, question and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.reader.prompts.texts import ChatTexts


@checked
@dataclass(frozen=True)
class Template(ChatTexts):
    """The texts around passages, question and answer. Every field can be replaced.

    A prompt is ``header, (passage, separator) for each passage, question_lead, question, answer_lead``; after it
    ``candidate, end`` are scored. With `question_first`, question_lead, question and question_end precede the
    passages. The model's chat template, if it has one, surrounds the prompt. Each piece is tokenised alone, so a piece
    owns the spaces and line breaks at its edges: a question, a title and a candidate are stripped before they are
    inserted; a passage's text is inserted unchanged.

    Special tokens written out in header, separator, question_lead, question_end, answer_lead, end and system are
    read as such. The pieces with fields (passage, passage_without_title, question, candidate) hold text from
    outside and are read as plain text, the template's own part of them included, so that a passage cannot end the
    user's turn; `TextEncoder` lists the tokens that this covers.

    Attributes:
        header: instruction before everything.
        passage: a passage with a title; fields {title}, {text}, {number} (its place, from 1). With {number}, a passage
            has other tokens at every place.
        passage_without_title: fields {text}, {number}.
        separator: after each passage; it survives when a passage is truncated.
        question_lead: before the question; not scored as part of it.
        question: field {question}; its tokens are the question's log-likelihood.
        question_end: between the question and the first passage, with `question_first` only.
        answer_lead: between question and answer; None uses nothing in a chat, and "\\nAnswer:" without one.
        candidate: field {candidate}; None uses the candidate, in a chat after a space only if the chat template
            writes one before an answer, and always after a space without a chat.
        end: what ends an answer, scored with it; None uses the chat template's end of turn, or "\\n" without a chat;
            "" scores candidates as open beginnings.
        question_first: whether the question precedes the passages.
        chat, system, chat_options: see `ChatTexts`.
    """

    header: str = "Answer the question from the passages below. Give the answer alone, in a few words.\n\n"
    passage: str = "Passage (Title: {title}) {text}"
    passage_without_title: str = "Passage: {text}"
    separator: str = "\n"
    question_lead: str = "\nQuestion:"
    question: str = " {question}"
    question_end: str = "\n\n"
    answer_lead: str | None = None
    candidate: str | None = None
    end: str | None = None
    question_first: bool = False

    OPTIONAL: ClassVar = {"passage": {"title", "number"}, "passage_without_title": {"number"}}
    REQUIRED: ClassVar = {"candidate": {"candidate"}}


DEFAULT = Template()


def as_template(template: Template | None) -> Template:
    """Return `template`, or the default for None.

    Raises:
        InputError: if it is something else.
    """
    if template is None:
        return DEFAULT
    expect(isinstance(template, Template), "template", "a Template (Template.load reads a file)", template)
    return template
