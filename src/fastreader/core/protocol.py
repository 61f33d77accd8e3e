"""What the methods ask of a reader, so that another engine can stand in for ours.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from fastreader.core.tree import TreeStats

TextOrTokens = str | Sequence[int]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Loglikelihood:
    """Log-likelihood of one continuation.

    Attributes:
        logprob: sum over its tokens, nats.
        tokens: how many tokens it has.
        greedy: whether greedy decoding would have written it.
        token_logprobs: one value a token, nats; None unless asked for.
        truncated: tokens dropped from the left of its context, by on_overflow="truncate".
    """

    logprob: float
    tokens: int
    greedy: bool
    token_logprobs: list[float] | None = None
    truncated: int = 0


@dataclass(frozen=True)
class Generation:
    """One text a reader wrote.

    Attributes:
        text: what it wrote, without the stop string or token that ended it.
        token_ids: its tokens; the stop token is not among them, the tokens of a stop string are.
        finish: what ended it: "end" (the model's end of turn or text), "stop" (a stop string or token of the
            caller) or "length" (max_new_tokens, or the model's context is full).
        prompt_tokens: tokens of its prompt.
        token_logprobs: log-probability of each of `token_ids` under the model itself (temperature 1, no
            truncation of the distribution), nats; None unless asked for.
        truncated: tokens dropped from the left of its prompt, by on_overflow="truncate".
    """

    text: str
    token_ids: list[int]
    finish: str
    prompt_tokens: int
    token_logprobs: list[float] | None = None
    truncated: int = 0

    @property
    def logprob(self) -> float | None:
        """Sum of `token_logprobs`, nats; None unless asked for."""
        return None if self.token_logprobs is None else float(sum(self.token_logprobs))


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
        max_tokens: int | None = None,
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
        stop_tokens: Sequence[int] = (),
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[list[Generation]]:
        """`n` texts for each prompt; greedy at temperature 0."""
        ...
