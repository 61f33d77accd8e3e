"""What the methods ask of a reader, so that another engine can stand in for ours.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fastreader.core.tree import PrefixTree, Tokens, TreeStats

TextOrTokens = str | Sequence[int]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Loglikelihood:
    """Log-likelihood of one continuation.

    Attributes:
        logprob: sum over its tokens, nats.
        num_tokens: how many tokens it has.
        is_greedy: whether greedy decoding would have written it.
        token_logprobs: one value a token, nats; None unless asked for.
        truncated: tokens dropped from the left of its context, by on_overflow="truncate".
    """

    logprob: float
    num_tokens: int
    is_greedy: bool
    token_logprobs: list[float] | None = None
    truncated: int = 0


@dataclass(frozen=True)
class Generation:
    """One text a reader wrote.

    Attributes:
        text: what it wrote, without the stop string or token that ended it.
        token_ids: its tokens; the stop token is not among them, the tokens of a stop string are.
        finish_reason: what ended it: "eos" (the model's end of turn or text), "stop" (a stop string or token of the
            caller) or "length" (max_new_tokens, or the model's context is full).
        prompt_tokens: tokens of its prompt.
        token_logprobs: log-probability of each of `token_ids` under the model itself (temperature 1, no
            truncation of the distribution), nats; None unless asked for.
        truncated: tokens dropped from the left of its prompt, by on_overflow="truncate".
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    token_logprobs: list[float] | None = None
    truncated: int = 0

    @property
    def logprob(self) -> float | None:
        """Sum of `token_logprobs`, nats; None unless asked for."""
        return None if self.token_logprobs is None else float(sum(self.token_logprobs))


@dataclass(frozen=True, eq=False)
class SequenceScores:
    """What a pass gives for S sequences, in the order given.

    Attributes:
        logprob: float64 [S], sum over the continuation's tokens, nats.
        num_tokens: int64 [S], tokens in each continuation.
        is_greedy: bool [S], whether every token is the most likely one at its place.
        token_logprobs: for each sequence float64 [tokens], nats.
        stats: tokens given and computed, over all passes.
        passes: how many passes it took.
        seconds: wall clock.
    """

    logprob: npt.NDArray[np.float64]
    num_tokens: npt.NDArray[np.int64]
    is_greedy: npt.NDArray[np.bool_]
    token_logprobs: list[npt.NDArray[np.float64]]
    stats: TreeStats
    passes: int
    seconds: float


class Results(list[Item], Generic[Item]):
    """A list of results, one for each request in order, with what they cost.

    Attributes:
        stats: tokens given and computed (prompt and new tokens both).
        passes: how many packed passes it took; decoding steps are not counted.
        seconds: wall clock.
    """

    def __init__(self, items: Iterable[Item], stats: TreeStats, passes: int = 1, seconds: float = 0.0) -> None:
        super().__init__(items)
        self.stats = stats
        self.passes = passes
        self.seconds = seconds


@runtime_checkable
class ReaderProtocol(Protocol):
    """A reader as the methods see it. `fastreader.Reader` is one."""

    name: str

    def describe(self) -> dict[str, str]:
        """Name, device, dtype and precision, as results carry them."""
        ...

    def prompt(
        self,
        pieces: Sequence[str],
        *,
        lead: str = "",
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> TextOrTokens:
        """The prompt that asks the model `pieces`, up to where its answer starts."""
        ...

    def continuation(
        self,
        text: str,
        *,
        end: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> TextOrTokens:
        """`text` as the model's answer after `prompt`, for `loglikelihood`."""
        ...

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_batch_tokens: int | None = None,
    ) -> Results[Loglikelihood]:
        """Log-likelihood of each continuation after its context."""
        ...

    def generate(
        self,
        prompts: Iterable[TextOrTokens],
        *,
        max_new_tokens: int = 128,
        n: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_batch_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[list[Generation]]:
        """`n` texts for each prompt; greedy at temperature 0."""
        ...


@runtime_checkable
class Scorer(ReaderProtocol, Protocol):
    """A reader that also scores token ids and plans its passes: `Reader`, `Session`, and a study's cached reader.

    Attributes:
        encoder: texts to token ids piece by piece, see `fastreader.reader.prompts.encoder.TextEncoder`.
    """

    encoder: Any

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens; None without a limit."""
        ...

    def budget(self) -> int:
        """Return the number of tokens that one pass computes at most by default."""
        ...

    def prefix(
        self,
        pieces: Sequence[str],
        *,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids that every `prompt` starts with whose pieces start with `pieces`."""
        ...

    def plan(
        self, sequences: Sequence[tuple[Tokens, Tokens]], max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return the trees that a call of `score` would run."""
        ...

    def score(
        self,
        sequences: Sequence[tuple[Tokens, Tokens]],
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
    ) -> SequenceScores:
        """Score (context, continuation) pairs of token ids."""
        ...


class ReaderWrapper:
    """The parts of `ReaderProtocol` that only write prompts and tell of the reader.

    Attributes:
        reader: the reader behind.
        name: the reader's name.
    """

    def __init__(self, reader: ReaderProtocol) -> None:
        self.reader = reader
        self.name = reader.name

    @property
    def max_length(self) -> int | None:
        """The reader's longest input, in tokens; None where it says none."""
        limit: int | None = getattr(self.reader, "max_length", None)
        return limit

    def describe(self) -> dict[str, str]:
        """As the reader's."""
        return self.reader.describe()

    def prompt(
        self,
        pieces: Sequence[str],
        *,
        lead: str = "",
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> TextOrTokens:
        """As the reader's."""
        return self.reader.prompt(pieces, lead=lead, system=system, chat=chat, chat_options=chat_options)

    def continuation(
        self,
        text: str,
        *,
        end: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> TextOrTokens:
        """As the reader's."""
        return self.reader.continuation(text, end=end, system=system, chat=chat, chat_options=chat_options)
