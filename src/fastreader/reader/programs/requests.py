"""Methods as generators: one question's program asks for texts and log-likelihoods, and a driver runs many together.

A program yields a `Write` or a `Score` and is sent the replies. It knows only its own question; `lockstep.run` brings
the requests of many programs into one call of the reader.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastreader.core.protocol import Generation, Loglikelihood, TextOrTokens

T = TypeVar("T")


@dataclass(frozen=True)
class Write:
    """Prompts to be continued; the reply is a list of n `Generation` for each.

    Attributes:
        stage: what it is for; costs and readers go by it.
        prompts: as `ReaderProtocol.prompt` gives them.
        max_new_tokens, n, temperature, seed, stop: as `ReaderProtocol.generate` takes them.
    """

    stage: str
    prompts: tuple[TextOrTokens, ...]
    max_new_tokens: int
    n: int = 1
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """(context, continuation) pairs to be scored; the reply is a `Loglikelihood` for each."""

    stage: str
    pairs: tuple[tuple[TextOrTokens, TextOrTokens], ...]


@dataclass(frozen=True)
class Keep:
    """A prefix that was read so that later requests go on from it; no program asks it, and there is no reply."""

    stage: str
    prefix: tuple[int, ...]


Request = Write | Score
Program = Generator[Request, Any, T]


def write(
    stage: str,
    prompts: Sequence[TextOrTokens],
    *,
    max_new_tokens: int,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    stop: Sequence[str] = (),
) -> Program[list[list[Generation]]]:
    """`yield from` it: n texts for each prompt; no prompts ask nothing."""
    if not prompts:
        return []
    replies: list[list[Generation]] = yield Write(
        stage, tuple(prompts), max_new_tokens, n, temperature, seed, tuple(stop)
    )
    return replies


def write_one(
    stage: str, prompt: TextOrTokens, *, max_new_tokens: int, stop: Sequence[str] = ()
) -> Program[Generation]:
    """`yield from` it: the greedy text after one prompt."""
    replies = yield from write(stage, [prompt], max_new_tokens=max_new_tokens, stop=stop)
    return replies[0][0]


def score(stage: str, pairs: Sequence[tuple[TextOrTokens, TextOrTokens]]) -> Program[list[Loglikelihood]]:
    """`yield from` it: the log-likelihood of each continuation; no pairs ask nothing."""
    if not pairs:
        return []
    replies: list[Loglikelihood] = yield Score(stage, tuple(pairs))
    return replies
