"""Prompts as pieces: a template, and the token ids of a question's pieces in any order of its passages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import string
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastreader.errors import InputError

_FIELDS = {
    "header": set[str](),
    "passage": {"title", "text", "number"},
    "passage_without_title": {"text", "number"},
    "separator": set[str](),
    "question_lead": set[str](),
    "question": {"question"},
    "question_end": set[str](),
    "answer_lead": set[str](),
    "candidate": {"candidate"},
    "end": set[str](),
}


@dataclass(frozen=True)
class Template:
    """The texts around passages, question and answer. Every field can be replaced.

    A prompt is ``header, (passage, separator) for each, question_lead, question, answer_lead`` and what is
    scored after it ``candidate, end``; with `question_first`, question_lead, question and question_end stand
    before the passages. Around the prompt goes the model's chat template where it has one. Each piece is
    tokenised alone, so a piece owns the spaces and line breaks at its edges: white space at the edges of a
    question, a title and a candidate is taken off before it is put in; a passage's text stays as it is.

    Special tokens written out in header, separator, question_lead, question_end, answer_lead, end and system are
    read as such. The pieces with fields (passage, passage_without_title, question, candidate) hold text from
    outside and are read as plain text throughout, the template's own part of them included, so that a passage
    cannot end the user's turn; `TextEncoder` says which tokens that covers.

    Attributes:
        header: instruction before everything.
        passage: a passage with a title; fields {title}, {text}, {number} (its place, from 1). A template that
            uses {number} gives a passage other tokens at every place.
        passage_without_title: fields {text}, {number}.
        separator: after each passage; it survives when a passage is truncated.
        question_lead: before the question; not scored as part of it.
        question: field {question}; its tokens are the question's log-likelihood.
        question_end: between the question and the first passage, with `question_first` only.
        answer_lead: between question and answer; None: nothing in a chat, "\\nAnswer:" without.
        candidate: field {candidate}; None: in a chat the candidate, behind a space only where the chat template
            puts one before an answer; without a chat, a space and the candidate.
        end: what ends an answer, scored with it; None: the chat template's end of turn, or "\\n" without;
            "" scores candidates as open beginnings.
        question_first: question before the passages.
        chat: whether to use the chat template; None: where the model has one.
        system: system message of the chat; None: what the chat template does without one.
        chat_options: further variables for the chat template, such as {"enable_thinking": False}. A chat template
            that leads an answer in otherwise than it writes one, as where it opens the model's thinking, is
            refused unless answer_lead is given ("" where nothing is missing).
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
    chat: bool | None = None
    system: str | None = None
    chat_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _FIELDS.items():
            text = getattr(self, name)
            if text is None and name in ("answer_lead", "candidate", "end"):
                continue
            if not isinstance(text, str):
                raise InputError(f"Template.{name}: expected text, got {type(text).__name__}")
            _check_fields(name, text, allowed)
        for name, kinds, expected in (
            ("question_first", (bool,), "true or false"),
            ("chat", (bool, type(None)), "true, false or None"),
            ("system", (str, type(None)), "text or None"),
            ("chat_options", (dict,), "names with values"),
        ):
            if not isinstance(value := getattr(self, name), kinds):
                raise InputError(f"Template.{name}: expected {expected}, got {type(value).__name__}")
        if odd := [key for key in self.chat_options if not isinstance(key, str)]:
            raise InputError(f"Template.chat_options: expected names as keys, got {odd[0]!r}")
        for key, value in self.chat_options.items():
            try:
                json.dumps(value, sort_keys=True, allow_nan=False)  # sorted as in `digest`
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"Template.chat_options: expected values that JSON can hold, got {key}={value!r} ({error})"
                ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Template:
        """Read a template from a TOML or JSON file whose keys are the attributes.

        Raises:
            InputError: not TOML or JSON, an unknown key, or a field that is not of the piece.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
            values = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # not JSON, not TOML, not UTF-8
            raise InputError(f"{file}: not a readable template ({error})") from error
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from error
        if not isinstance(values, dict):
            raise InputError(f"{file}: expected an object with a template's fields, got {type(values).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise InputError(f"{file}: unknown keys {', '.join(unknown)}; a template has {', '.join(known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All attributes, as `load` reads them."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """16 hexadecimal digits that tell templates apart, as results carry them."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_template(template: Template | None) -> Template:
    """`template`, or the default one for None.

    Raises:
        InputError: something else.
    """
    if template is None:
        return Template()
    if not isinstance(template, Template):
        raise InputError(f"template: expected a Template (Template.load reads a file), got {template!r}")
    return template


def _check_fields(name: str, text: str, allowed: set[str]) -> None:
    if not allowed:
        return  # a literal piece: braces in it are just braces
    try:
        found = [part for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise InputError(f"Template.{name}: {text!r} is not a format string ({error})") from error
    used = {str(key) for _, key, _, _ in found}
    if extra := sorted(used - allowed):
        raise InputError(f"Template.{name}: unknown fields {extra}; it may use {sorted(allowed)}")
    for _, key, spec, conversion in found:
        if spec or conversion:
            raise InputError(f"Template.{name}: fields stand alone, as {{{key}}}, without ':' or '!'; got {text!r}")
    required = allowed - {"number", "title"}
    if missing := sorted(required - used):
        raise InputError(f"Template.{name}: the field {{{missing[0]}}} must appear in it, got {text!r}")
