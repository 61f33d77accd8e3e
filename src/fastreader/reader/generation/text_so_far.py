"""Decode one text: append tokens until a stop string, a stop token, the end of text or the length limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import filterfalse
from operator import itemgetter

import numpy as np

from fastreader.core.options import StepOptions
from fastreader.core.protocol import Generation
from fastreader.reader.prompts.encoder import TextEncoder

Decode = Callable[[Sequence[int]], str]
Top = list[tuple[int, float]]  # tokens and their log-probabilities, the most likely first

_UNFINISHED = "\ufffd"  # decoders return it for an incomplete character


def cut(text: str, stop: Sequence[str]) -> str | None:
    """Return `text` up to the first stop string, or None without one."""
    end = len(text) + 1
    for wanted in stop:
        if (place := text.find(wanted)) >= 0:
            end = min(end, place)
    return text[:end] if end <= len(text) else None


class StopStrings:
    """Find stop strings in a text that grows token by token, however its tokens split them.

    Each step decodes only the last tokens: a token's text depends on the one before it (a leading space, the bytes of
    a character), hardly ever on earlier ones. A match is confirmed on the whole text.

    Args:
        decode: token ids to text.
        stop: the stop strings.
    """

    def __init__(self, decode: Decode, stop: Sequence[str]) -> None:
        self._decode = decode
        self._stop = stop
        self._reach = max(map(len, stop), default=0)
        self._tail = ""  # the end of the text settled so far, as long as a stop string may reach back
        self._settled = 0  # tokens whose text is in the tail
        self._context = 0  # first of the tokens decoded before the new ones

    def found(self, tokens: Sequence[int]) -> bool:
        """Return whether the text of all `tokens` so far contains a stop string."""
        if not self._stop:
            return False
        known = self._decode(tokens[self._context : self._settled])
        text = self._decode(tokens[self._context :])
        new = text[len(known) :]
        seen = self._tail + new
        if new and not text.endswith(_UNFINISHED):
            self._tail = seen[-self._reach :]
            self._context, self._settled = self._settled, len(tokens)
        return cut(seen, self._stop) is not None and cut(self._decode(tokens), self._stop) is not None


class Stops:
    """The stop strings of a call: those that hold a special token are sought in the text with special tokens.

    Args:
        encoder: decodes the texts.
        stop: the stop strings.

    Attributes:
        special: the stop strings that hold a special token.
        token_ids: of the stop strings that are one special token, which end a text as their ids do.
        sought: what `StopStrings` takes, for the stop strings of either kind if there are any.
    """

    def __init__(self, encoder: TextEncoder, stop: Sequence[str]) -> None:
        self._decode, self._decode_all = encoder.text, partial(encoder.text, special_tokens=True)
        self.special = tuple(filter(encoder.special_in, stop))
        self._plain = tuple(filterfalse(encoder.special_in, stop))
        self.token_ids = tuple(map(encoder.special.__getitem__, filter(encoder.special.__contains__, self.special)))
        self.sought = tuple(filter(itemgetter(1), ((self._decode, self._plain), (self._decode_all, self.special))))

    def generation(self, decoded: DecodedText, options: StepOptions) -> Generation:
        """Return a finished text, cut at the first stop string."""
        tokens = decoded.tokens
        text = self._decode(tokens)
        shortened = cut(text, self._plain)
        whole = self._decode_all(tokens) if self.special else ""
        before = cut(whole, self.special)
        if before is not None:
            own = self._without_special(tokens, before)
            shortened = own if shortened is None or len(own) < len(shortened) else shortened
        return Generation(
            text=text if shortened is None else shortened,
            token_ids=tokens,
            finish_reason=decoded.finish_reason if shortened is None else "stop",
            prompt_tokens=len(decoded.prompt),
            token_logprobs=decoded.logprobs if options.token_logprobs else None,
            top_logprobs=decoded.top or None,
            truncated=decoded.truncated,
        )

    def _without_special(self, tokens: Sequence[int], before: str) -> str:
        """Return `before`, the beginning of the text of `tokens` with special tokens, without them."""
        count = next(n for n in range(len(tokens) + 1) if self._decode_all(tokens[:n]).startswith(before))
        over = len(self._decode_all(tokens[:count])) - len(before)
        text = self._decode(tokens[:count])
        return text[: len(text) - over]


@dataclass(eq=False)
class DecodedText:
    """One text being decoded.

    Attributes:
        prompt: token ids.
        room: tokens that may be added before the context is full, at most max_new_tokens.
        draw: its random numbers; None in greedy decoding.
        watches: find stop strings.
        truncated: tokens dropped from the left of the prompt.
        tokens: token ids decoded so far.
        logprobs: of each token, nats; empty unless requested.
        top: for each token the most likely ones at its place, with their log-probabilities; empty unless requested.
        finish_reason: as in `Generation`; "" while it is being decoded.
    """

    prompt: Sequence[int]
    room: int
    draw: np.random.Generator | None
    watches: Sequence[StopStrings] = ()
    truncated: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    finish_reason: str = ""

    def add(
        self,
        token: int,
        logprob: float | None,
        eos: frozenset[int],
        stop_token_ids: Sequence[int],
        top: Top | None = None,
    ) -> None:
        """Append a token, or finish the text by it."""
        if token in stop_token_ids:
            self.finish_reason = "stop"
        elif token in eos:
            self.finish_reason = "eos"
        else:
            self.tokens.append(token)
            if logprob is not None:
                self.logprobs.append(logprob)
            if top is not None:
                self.top.append(top)
            for watch in self.watches:
                if watch.found(self.tokens):
                    self.finish_reason = "stop"
                    return
            if len(self.tokens) >= self.room:
                self.finish_reason = "length"


def unfinished(texts: Sequence[DecodedText]) -> list[int]:
    """Return the indices of the texts that are still being decoded."""
    return [i for i, text in enumerate(texts) if not text.finish_reason]
