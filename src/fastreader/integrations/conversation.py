"""Conversations of many turns as token ids, with what their messages say kept as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from fastreader.core.checks import expect, rejecting
from fastreader.errors import UnsupportedModelError
from fastreader.reader.prompts.encoder import TextEncoder

Message = tuple[str, str]


def conversation_tokens(encoder: TextEncoder, messages: Sequence[Message]) -> list[int]:
    """Return a conversation in the model's chat template, up to where the model's answer starts.

    Special tokens written out in a message stay plain text, as in `Reader.prompt`.

    Args:
        encoder: of the reader.
        messages: (role, text) of each message; roles are "system", "user" and "assistant".

    Raises:
        InputError: if there is no message, the model has no chat template, or the template rejects the messages.
        UnsupportedModelError: if the template changes a message or writes it twice.
    """
    from jinja2 import TemplateError

    tokenizer = encoder.tokenizer
    expect(bool(messages), "messages", "at least one", messages)
    expect(bool(getattr(tokenizer, "chat_template", None)), "chat", "False for a model without a chat template", True)
    # The template is rendered around marks, so that only its own texts are read as special tokens.
    marks = [f"fastreader\u241e{place}\u241e" for place in range(len(messages))]
    turns = [{"role": role, "content": mark} for (role, _), mark in zip(messages, marks, strict=True)]
    roles = ", ".join(role for role, _ in messages)
    problem = f"messages: the model's chat template rejects the roles {roles}"
    with rejecting(problem, TemplateError, TypeError, ValueError):
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    tokens: list[int] = []
    for (_, content), mark in zip(messages, marks, strict=True):
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise UnsupportedModelError("the chat template does not keep every message as it is, once and in order")
        tokens += encoder.piece(before, trusted=True) if tokens else encoder.start(before, trusted=True)
        tokens += encoder.piece(content)
    return tokens + encoder.piece(text, trusted=True)
