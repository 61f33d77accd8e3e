"""Row: one text being written; Request: what is asked of every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fastreader.core.protocol import Generation
from fastreader.reader.decoding import Decode, StopWatch, cut
from fastreader.reader.sampling import Sampling


@dataclass(frozen=True)
class Request:
    """What is asked of every row.

    Attributes:
        max_new_tokens: tokens a row writes at most.
        sampling: how tokens are drawn.
        end: tokens by which the model ends its text.
        stop: stop strings.
        stop_tokens: the caller's stop tokens.
        token_logprobs: whether log-probabilities are asked for.
    """

    max_new_tokens: int
    sampling: Sampling
    end: frozenset[int]
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    token_logprobs: bool


@dataclass(eq=False)
class Row:
    """One text being written.

    Attributes:
        prompt: token ids.
        room: tokens that may be written before the context is full, or max_new_tokens.
        draw: its random numbers.
        watch: looks for stop strings.
        truncated: tokens dropped from the prompt's left.
        tokens: what it wrote.
        logprobs: of each, nats; empty unless asked for.
        finish: see `Generation`; "" while it is being written.
    """

    prompt: Sequence[int]
    room: int
    draw: np.random.Generator
    watch: StopWatch
    truncated: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""

    def add(self, token: int, logprob: float | None, request: Request) -> None:
        """Write one more token, and see whether it is the last."""
        if token in request.stop_tokens:
            self.finish = "stop"
        elif token in request.end:
            self.finish = "end"
        else:
            self.tokens.append(token)
            if logprob is not None:
                self.logprobs.append(logprob)
            if self.watch.found(self.tokens):
                self.finish = "stop"
            elif len(self.tokens) >= self.room:
                self.finish = "length"


def written(row: Row, decode: Decode, request: Request) -> Generation:
    """What a finished row gives."""
    text = decode(row.tokens)
    shortened = cut(text, request.stop)
    return Generation(
        text=text if shortened is None else shortened,
        token_ids=row.tokens,
        finish=row.finish if shortened is None else "stop",
        prompt_tokens=len(row.prompt),
        token_logprobs=row.logprobs if request.token_logprobs else None,
        truncated=row.truncated,
    )
