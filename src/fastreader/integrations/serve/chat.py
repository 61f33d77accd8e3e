"""`/v1/chat/completions`: the assistant's next message, by the model's own chat template."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastreader.core.checks import expect, require
from fastreader.core.protocol import Generation
from fastreader.errors import InputError
from fastreader.integrations.serve.answers import check_bytes
from fastreader.integrations.serve.bodies import ChatRequest, TokenizeRequest
from fastreader.integrations.serve.completions import (
    ChoiceTokens,
    Emit,
    Top,
    TopTexts,
    check_length,
    check_size,
    generated,
    growing,
    head,
    reason_of,
    usage,
)
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.texts import token_places
from fastreader.reader.generation.text_so_far import DecodedText
from fastreader.reader.prompts.chat_template import render_chat
from fastreader.reader.prompts.encoder import Seam, TextEncoder

_MARK = "\u241e"  # around the number of a special token that a client wrote


def answer_chat(request: ChatRequest, reader: PackedReader, emit: Emit | None = None) -> dict[str, Any] | None:
    """Return a chat completion, or send it by `emit` while it is generated."""
    expect(request.logprobs or not request.top_logprobs, "top_logprobs", "0 without logprobs", request.top_logprobs)
    for message in request.messages:
        check_length(reader, "messages", message.content)
    check_bytes(reader, "messages", "".join(message.content for message in request.messages))
    prompt = chat_prompt(request, reader.encoder)
    check_length(reader, "messages", prompt)
    top = request.top_logprobs if request.logprobs else None
    check_size(request, reader, [prompt], top)
    stream = None if emit is None else _ChatStream(request, reader, emit)
    found = generated(request, reader, [prompt], top, None if stream is None else stream.step)
    (texts,) = found
    counts = usage([prompt], [[ChoiceTokens(tokens=tuple(text.token_ids)) for text in texts]], found.stats)
    if stream is not None:
        stream.end(texts, counts)
        return None
    choices = []
    for index, text in enumerate(texts):
        logprobs = None
        if request.logprobs:
            places = token_places(reader.encoder.text, text.text, text.token_ids)
            logprobs = _listed(TopTexts(reader.encoder.text), places, text.token_ids, text)
        reason = reason_of(text)
        choices.append(
            {
                "index": index,
                "message": {"role": "assistant", "content": text.text},
                "logprobs": logprobs,
                "finish_reason": reason,
            }
        )
    return {**head("chatcmpl", "chat.completion", reader), "choices": choices, "usage": counts}


def chat_prompt(request: ChatRequest | TokenizeRequest, encoder: TextEncoder) -> list[int]:
    """Return the token ids of a conversation up to the next answer, as transformers' `apply_chat_template` does.

    Special tokens that a message spells out stay plain text.

    Raises:
        InputError: if there is no chat template, or it rejects the messages.
    """
    tokenizer = encoder.tokenizer
    require(bool(tokenizer.chat_template), "messages: the model has no chat template; use /v1/completions")
    reserved = inspect.signature(tokenizer.apply_chat_template).parameters
    for name in request.chat_template_kwargs:
        expect(name not in reserved, "chat_template_kwargs", "variables of the chat template", name)
    written: list[str] = []
    special = re.compile("|".join(map(re.escape, [*sorted(encoder.special, key=len, reverse=True), _MARK])))

    def hidden(found: re.Match[str]) -> str:
        written.append(found.group())
        return f"{_MARK}{len(written) - 1}{_MARK}"

    hidden_messages = [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": special.sub(hidden, message.content),
        }
        for message in request.messages or ()
    ]
    try:
        text = render_chat(tokenizer, hidden_messages, request.chat_template_kwargs, generation=True)
    except InputError as error:
        raise InputError(f"messages: the model's chat template rejects them ({str(error)[:200]})") from error
    tokens, seam, plain = list[int](), Seam(), list[str]()
    for i, part in enumerate(re.split(f"{_MARK}(\\d+){_MARK}", text)):
        own = i % 2 == 0  # the template's; between such parts a special token that a message spells out
        if not (own and encoder.special_in(part)):
            plain.append(part if own else written[int(part)])
            continue
        seam = encoder.follow(encoder.follow(seam, "".join(plain)), part, trusted=True)
        tokens += seam.tokens  # taken out of the seam, which each part would copy
        seam, plain = replace(seam, tokens=()), []
    return tokens + encoder.closed(seam, "".join(plain)) or [encoder.prefix_token()]


def _listed(
    texts: TopTexts,
    places: Sequence[tuple[str, int]],
    tokens: Sequence[int],
    of: Generation | DecodedText,
    first: int = 0,
) -> dict[str, Any]:
    """Return the `logprobs` of tokens with their texts, the first of which is number `first` of a text."""
    values = (of.token_logprobs if isinstance(of, Generation) else of.logprobs) or []
    tops: Sequence[Top] = (of.top_logprobs if isinstance(of, Generation) else of.top) or [()] * len(values)
    rows = []
    for (text, _), token, value, top in zip(places, tokens, values[first:], tops[first:], strict=False):
        names = [(text if other == token else texts.text(other), logprob) for other, logprob in top]
        most = [_value(name, logprob) for name, logprob in names]
        rows.append({**_value(text, value), "top_logprobs": most})
    return {"content": rows, "refusal": None}


def _value(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class _ChatStream:
    """The events of a chat completion.

    Args:
        request, reader: of the completion.
        emit: sends an event.
    """

    def __init__(self, request: ChatRequest, reader: PackedReader, emit: Emit) -> None:
        self._request, self._emit = request, emit
        self._head = head("chatcmpl", "chat.completion.chunk", reader)
        self._top = TopTexts(reader.encoder.text)
        options = request.stream_options
        self._usage = options is not None and options.include_usage
        self._texts = growing(request, reader, [()] * request.n)
        self._begun = False

    def _send(self, index: int, delta: dict[str, str], logprobs: Any = None, reason: str | None = None) -> None:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        self._emit({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})

    def step(self, texts: Sequence[tuple[int, DecodedText]]) -> None:
        """Send what a step added."""
        self._begin()
        for i, text in texts:
            own = self._texts[i]
            new, places = own.grow(text.tokens[own.tokens :])
            if new or places:
                self._send(i, {"content": new}, self._logprobs(i, places, text.tokens, text))

    def end(self, texts: Sequence[Generation], counts: dict[str, Any]) -> None:
        """Send the rest."""
        self._begin()
        for i, text in enumerate(texts):
            self._texts[i].grow(text.token_ids[self._texts[i].tokens :])
            rest, places = self._texts[i].end(text.text)
            if rest or places:
                self._send(i, {"content": rest}, self._logprobs(i, places, text.token_ids, text))
            self._send(i, {}, None, reason_of(text))
        if self._usage:
            self._emit({**self._head, "choices": [], "usage": counts})

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            for i in range(self._request.n):
                self._send(i, {"role": "assistant", "content": ""})

    def _logprobs(
        self, index: int, places: Sequence[tuple[str, int]], tokens: Sequence[int], of: Generation | DecodedText
    ) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        first = self._texts[index].sent - len(places)
        return _listed(self._top, places, tokens[first:], of, first)
