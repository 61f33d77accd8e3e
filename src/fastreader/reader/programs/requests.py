"""Methods as generators: one question's program requests texts and log-likelihoods, and a scheduler runs many together.

A program yields a `Write` or a `Score` and receives the replies. It knows only its own question; `scheduler.run` packs
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
    """Request n `Generation`s for each prompt.

    Attributes:
        stage: name of the stage, which decides the reader; costs are listed by stage.
        prompts: prompts as `ReaderProtocol.prompt` returns them.
        max_new_tokens, n, temperature, seed, stop: see `Reader.generate`.
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
    """Request a `Loglikelihood` for each (context, continuation) pair."""

    stage: str
    pairs: tuple[tuple[TextOrTokens, TextOrTokens], ...]


@dataclass(frozen=True)
class PrefixRead:
    """A prefix that was read once for later requests, recorded like a request without a reply."""

    stage: str
    prefix: tuple[int, ...]


Request = Write | Score
Program = Generator[Request, Any, T]


def write(
    stage: str, prompts: Sequence[TextOrTokens], *, stop: Sequence[str] = (), **options: Any
) -> Program[list[list[Generation]]]:
    """Request texts for each prompt, with `yield from` and fields of `Write` as options. No prompts make no request."""
    if not prompts:
        return []
    replies: list[list[Generation]] = yield Write(stage, tuple(prompts), stop=tuple(stop), **options)
    return replies


def write_one(stage: str, prompt: TextOrTokens, **options: Any) -> Program[Generation]:
    """Request the text after one prompt, with `yield from` and the options of `write`."""
    [[reply]] = yield from write(stage, [prompt], **options)
    return reply


def score(stage: str, pairs: Sequence[tuple[TextOrTokens, TextOrTokens]]) -> Program[list[Loglikelihood]]:
    """Request the log-likelihood of each continuation, with `yield from`. No pairs make no request."""
    if not pairs:
        return []
    replies: list[Loglikelihood] = yield Score(stage, tuple(pairs))
    return replies
