"""Sampling and GenerateOptions: the arguments of `generate`, checked in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastreader.core.checked import Accepts, checked_options
from fastreader.core.checks import check_choice, check_int, check_number, expect

MOST_NEW_TOKENS = 2**20  # of one text; longer than the context of any model
MOST_TEXTS = 10_000  # for one prompt


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of drawing tokens, applied in the order of the attributes as in transformers.

    Attributes:
        temperature: divisor of the logits; 0 takes the most likely token, and the other options have no effect.
        top_k: number of most likely tokens to keep; None keeps all.
        top_p: probability mass to keep: the fewest most likely tokens that reach it (nucleus sampling, Holtzman et al.
            2020, arXiv:1904.09751); None keeps all.
        repetition_penalty: divisor of the positive logits, and factor of the negative ones, of tokens in the prompt or
            the text so far (Keskar et al. 2019, arXiv:1909.05858), before the others apply; 1 changes nothing. It
            applies at temperature 0 too.

    Raises:
        InputError: if a value is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_number("repetition_penalty", self.repetition_penalty, above=0)
        check_number("temperature", self.temperature, minimum=0)
        check_int("top_k", self.top_k, optional=True)
        check_number("top_p", self.top_p, above=0, maximum=1, optional=True)


@checked_options
@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Sampling):
    """Keyword arguments of `Reader.generate`, which documents them.

    Raises:
        InputError: if a value is out of range.
    """

    max_new_tokens: int = 128
    n: int = 1
    seed: int = 0
    stop: Annotated[Sequence[str], Accepts(Iterable[str])] = ()
    stop_token_ids: Annotated[Sequence[int], Accepts(Iterable[int])] = ()
    token_logprobs: bool = False
    special_tokens: bool = False
    on_overflow: str = "error"
    max_batch_tokens: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("max_new_tokens", self.max_new_tokens, 1, MOST_NEW_TOKENS)
        check_int("n", self.n, 1, MOST_TEXTS)
        expect(-(2**63) <= self.seed < 2**63, "seed", "an integer of 64 bits", self.seed)
        check_choice("on_overflow", self.on_overflow, ("error", "truncate"))
        check_int("max_batch_tokens", self.max_batch_tokens, optional=True)
        # Tuples, because an iterator would be empty after its check.
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        expect(all(self.stop), "stop", "a list of texts that are not empty", self.stop)


@checked_options
@dataclass(frozen=True, kw_only=True)
class StepOptions(GenerateOptions):
    """Options of `Reader.generate_steps`.

    Attributes:
        top_logprobs: number of most likely tokens to return at the place of each token.

    Raises:
        InputError: if a value is out of range.
    """

    top_logprobs: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("top_logprobs", self.top_logprobs, 0)
