"""ScoreOptions: the keyword arguments of `score_permutations`, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastreader.core.checked import Accepts, checked_options
from fastreader.core.checks import check_choice, check_int, check_number, expect
from fastreader.permutations import Spec
from fastreader.reader.prompts.template import DEFAULT, Template

POLICIES = ("error", "drop_passages", "truncate")


@checked_options
@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What to score and how, as `score_permutations` documents.

    Raises:
        InputError: if a value is of another type or out of range.
    """

    permutations: Spec = "cyclic"
    seed: int = 0
    prune: int | None = None
    prune_mass: float | None = None
    template: Annotated[Any, Accepts(Template | None)] = None  # a `Template` once made
    question_only: bool = False
    score_passages: bool = False
    closed_book: bool = False
    query_likelihood: bool = False
    token_logprobs: bool = False
    on_overflow: str = "error"
    max_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        check_int("prune", self.prune, optional=True)
        check_number("prune_mass", self.prune_mass, above=0, below=1, optional=True)
        expect(self.prune is None or self.prune_mass is None, "prune_mass", "None together with prune", self.prune_mass)
        check_choice("on_overflow", self.on_overflow, POLICIES)
        check_int("max_batch_tokens", self.max_batch_tokens, optional=True)
        object.__setattr__(self, "template", self.template or DEFAULT)
