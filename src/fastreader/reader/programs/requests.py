"""Methods as generators: one question's program requests texts and log-likelihoods, and a scheduler runs many together.

A program yields a `Write` or a `Score` and receives the replies. It knows only its own question; `scheduler.run` packs
the requests of many programs into one call of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from fastreader.core.protocol import Generation, Loglikelihood, TextOrTokens
from fastreader.core.tree import PrefixTree, TreeStats

T = TypeVar("T")


@dataclass(frozen=True)
class Write:
    """Request n `Generation`s for each prompt.

    Attributes:
        stage: name of the stage, which decides the reader; costs are listed by stage.
        prompts: prompts as `ReaderProtocol.prompt` returns them.
        max_new_tokens, n, temperature, seed, stop, repetition_penalty: see `Reader.generate`.
    """

    stage: str
    prompts: tuple[TextOrTokens, ...]
    max_new_tokens: int
    n: int = 1
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `ReaderProtocol.generate`, with a penalty only if there is one."""
        names = ("max_new_tokens", "n", "temperature", "seed", "stop")
        penalty = {} if self.repetition_penalty == 1 else {"repetition_penalty": self.repetition_penalty}
        return {name: getattr(self, name) for name in names} | penalty


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


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage of one question, with tokens as if the question had run alone.

    Attributes:
        calls: number of prompts continued and texts scored; each label is a call.
        total_tokens: tokens of all calls, prompts, labels and new tokens, as separate calls would read them; None if
            the question was packed with others and its prompts are texts, whose tokens only the reader can count.
        computed_tokens: number of tokens that went through the model; None if `total_tokens` is None.
        new_tokens: number of tokens generated, over all n texts of each prompt.
        seconds: wall clock of the reader's calls, shared with the questions packed together.
    """

    calls: int
    total_tokens: int | None
    computed_tokens: int | None
    new_tokens: int
    seconds: float

    def __add__(self, other: StageCost) -> StageCost:
        pairs: Any = zip(astuple(self), astuple(other), strict=True)
        sums: list[Any] = [None if a is None or b is None else a + b for a, b in pairs]
        return StageCost(*sums)


def request_cost(
    request: Request,
    replies: Sequence[Any],
    seconds: float,
    stats: TreeStats | None = None,
    cached: Callable[[Sequence[Sequence[int]]], int] | None = None,
) -> StageCost:
    """Return the cost of a request.

    Args:
        request: the request.
        replies: its replies.
        seconds: wall clock of the call.
        stats: the reader's count of a call that held this request only; None counts the tokens of the request as if
            it had been alone in its call, which is impossible for prompts that are texts.
        cached: returns how many tokens of the prompts the reader had in its cache; None for none.
    """
    new = 0
    if isinstance(request, Score):
        calls = len(request.pairs)
    else:
        calls = request.n * len(request.prompts)
        for generations in replies:
            for generation in generations:
                new += len(generation.token_ids)
    if stats is not None:
        return StageCost(calls, stats.total_tokens, stats.computed_tokens, new, seconds)
    pairs: Any = request.pairs if isinstance(request, Score) else [(prompt, ()) for prompt in request.prompts]
    if any(isinstance(context, str) for context, _ in pairs):
        return StageCost(calls, None, None, new, seconds)
    alone = PrefixTree.build(pairs).stats
    total, computed = alone.total_tokens, alone.computed_tokens
    if not isinstance(request, Score):
        read = computed if cached is None else computed - cached(request.prompts)  # type: ignore[arg-type]
        total, computed = request.n * total + new, read + new
    return StageCost(calls, total, computed, new, seconds)
