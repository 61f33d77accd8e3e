"""The interface between methods and a reader, so that another engine can replace ours. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack, runtime_checkable

import numpy as np
import numpy.typing as npt

from fastreader.core.tree import PrefixTree, Tokens, TreeStats

TextOrTokens = str | Sequence[int]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Loglikelihood:
    """Log-likelihood of one continuation.

    Attributes:
        logprob: sum over the continuation's tokens, nats.
        num_tokens: number of tokens of the continuation.
        is_greedy: whether greedy decoding would have written the continuation.
        token_logprobs: one value per token, nats; None unless requested.
        truncated: number of tokens dropped from the left of the context, by on_overflow="truncate".
    """

    logprob: float
    num_tokens: int
    is_greedy: bool
    token_logprobs: list[float] | None = None
    truncated: int = 0


@dataclass(frozen=True)
class Generation:
    """One text written by a reader.

    Attributes:
        text: the text, without the stop string or token that ended it.
        token_ids: the text's tokens; a stop token is left out, the tokens of a stop string are included.
        finish_reason: "eos" (the model's end of turn or text), "stop" (a stop string or token of the caller) or
            "length" (max_new_tokens, or the model's context is full).
        prompt_tokens: number of tokens of the prompt.
        token_logprobs: log-probability of each of `token_ids` under the model itself (temperature 1, no
            truncation of the distribution), nats; None unless requested.
        truncated: number of tokens dropped from the left of the prompt, by on_overflow="truncate".
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    token_logprobs: list[float] | None = None
    truncated: int = 0

    @property
    def logprob(self) -> float | None:
        """Sum of `token_logprobs`, nats, or None unless requested."""
        return None if self.token_logprobs is None else float(sum(self.token_logprobs))


@dataclass(frozen=True, eq=False)
class SequenceScores:
    """Scores of S sequences, in the caller's order.

    Attributes:
        logprob: float64 [S], sum over the continuation's tokens, nats.
        num_tokens: int64 [S], number of tokens in each continuation.
        is_greedy: bool [S], whether every token is the most likely one at its place.
        token_logprobs: for each sequence float64 [tokens], nats.
        stats: total and computed tokens, over all passes.
        passes: number of passes.
        seconds: wall-clock time.
        best_tokens: for each sequence int64 [tokens], the most likely token at each place; None unless requested.
        best_logprobs: for each sequence float64 [tokens], their log-probabilities, nats; None unless requested.
    """

    logprob: npt.NDArray[np.float64]
    num_tokens: npt.NDArray[np.int64]
    is_greedy: npt.NDArray[np.bool_]
    token_logprobs: list[npt.NDArray[np.float64]]
    stats: TreeStats
    passes: int
    seconds: float
    best_tokens: list[npt.NDArray[np.int64]] | None = None
    best_logprobs: list[npt.NDArray[np.float64]] | None = None


class Results(list[Item], Generic[Item]):
    """A list of results, one for each request in order, with their cost.

    Attributes:
        stats: total and computed tokens, of prompts and of new tokens.
        passes: number of packed passes; decoding steps are not counted.
        seconds: wall-clock time.
    """

    def __init__(self, items: Iterable[Item], stats: TreeStats, passes: int = 1, seconds: float = 0.0) -> None:
        super().__init__(items)
        self.stats = stats
        self.passes = passes
        self.seconds = seconds


class ChatArguments(TypedDict, total=False):
    """Keyword arguments about the chat template, as `Reader.prompt` documents them."""

    system: str | None
    chat: bool | None
    chat_options: Mapping[str, Any] | None


class LoglikelihoodArguments(TypedDict, total=False):
    """Keyword arguments of `loglikelihood`, as `Reader.loglikelihood` documents them."""

    token_logprobs: bool
    special_tokens: bool
    on_overflow: str
    max_batch_tokens: int | None


class GenerateArguments(TypedDict, total=False):
    """Keyword arguments of `generate`, as `Reader.generate` documents them."""

    max_new_tokens: int
    n: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    token_logprobs: bool
    special_tokens: bool
    on_overflow: str
    max_batch_tokens: int | None
    progress: bool | None


@runtime_checkable
class ReaderProtocol(Protocol):
    """The methods' view of a reader. `fastreader.Reader` is one."""

    name: str

    def describe(self) -> dict[str, str]:
        """Return name, device, dtype and precision, as results carry them."""
        ...

    def prompt(self, pieces: Sequence[str], *, lead: str = "", **chat: Unpack[ChatArguments]) -> TextOrTokens:
        """Return the prompt made of `pieces`, up to the start of the model's answer."""
        ...

    def continuation(self, text: str, *, end: bool = False, **chat: Unpack[ChatArguments]) -> TextOrTokens:
        """Return `text` as the model's answer after `prompt`, for `loglikelihood`."""
        ...

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        **options: Unpack[LoglikelihoodArguments],
    ) -> Results[Loglikelihood]:
        """Return the log-likelihood of each continuation after its context."""
        ...

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Return `n` texts for each prompt, greedy ones at temperature 0."""
        ...


@runtime_checkable
class ScoringReader(ReaderProtocol, Protocol):
    """A reader that also scores token ids and plans its passes: `Reader`, `Session`, and a study's cached reader.

    Attributes:
        encoder: converts texts to token ids piece by piece, see `fastreader.reader.prompts.encoder.TextEncoder`.
    """

    encoder: Any

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, or None if there is no limit."""
        ...

    def budget(self) -> int:
        """Return the default limit on the tokens that one pass computes."""
        ...

    def prefix(self, pieces: Sequence[str], **chat: Unpack[ChatArguments]) -> list[int]:
        """Return the token ids shared by every `prompt` whose pieces start with `pieces`."""
        ...

    def plan(
        self, sequences: Sequence[tuple[Tokens, Tokens]], max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return the trees that `score` would run."""
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
    """The parts of `ReaderProtocol` that forward to the wrapped reader without running it.

    Attributes:
        reader: the wrapped reader.
        name: name of the reader.
    """

    def __init__(self, reader: ReaderProtocol) -> None:
        self.reader = reader
        self.name = reader.name

    @property
    def max_length(self) -> int | None:
        """Longest input of the reader in tokens, or None if the reader does not say."""
        limit: int | None = getattr(self.reader, "max_length", None)
        return limit

    def describe(self) -> dict[str, str]:
        """Return `ReaderProtocol.describe` of the reader."""
        return self.reader.describe()

    def prompt(self, pieces: Sequence[str], **options: Any) -> TextOrTokens:
        """Return `ReaderProtocol.prompt` of the reader, with its keyword arguments."""
        return self.reader.prompt(pieces, **options)

    def continuation(self, text: str, **options: Any) -> TextOrTokens:
        """Return `ReaderProtocol.continuation` of the reader, with its keyword arguments."""
        return self.reader.continuation(text, **options)
