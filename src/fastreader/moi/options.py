"""RerankOptions: the keyword arguments of `rerank`, `plan` and `answer`; Stopping: when to stop adding orderings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastreader.core.checks import check_choice, check_int
from fastreader.errors import InputError
from fastreader.moi.overflow import POLICIES
from fastreader.moi.types import ORDERS, Utilities
from fastreader.permutations import Spec

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.options import ScoreOptions


@dataclass(frozen=True)
class Stopping:
    """When to stop adding orderings. Each round is a pass of its own, and shares no beginning with earlier ones.

    Attributes:
        p_best: stop when the largest `Utilities.p_best` reaches this (a joint solve has none); None disables it.
        same_order: stop when this number of rounds in a row gave one matched order; None disables it.
        most: at most this number of orderings, 3N by default; not fewer than the first pass scores.
    """

    p_best: float | None = 0.9
    same_order: int | None = 2
    most: int | None = None

    def __post_init__(self) -> None:
        if self.p_best is not None and not 0 < self.p_best <= 1:
            raise InputError(f"Stopping.p_best: expected a probability in (0, 1], got {self.p_best}")
        check_int("Stopping.same_order", self.same_order, 2, optional=True)
        check_int("Stopping.most", self.most, optional=True)

    def settled(self, history: list[Utilities]) -> bool:
        """Whether the last round's utilities are."""
        last = history[-1]
        if self.p_best is not None and last.p_best is not None and float(last.p_best.max()) >= self.p_best:
            return True
        if self.same_order is None or len(history) < self.same_order:
            return False
        orders = {tuple(u.order("matched").tolist()) for u in history[-self.same_order :]}
        return len(orders) == 1


@dataclass(frozen=True, kw_only=True)
class RerankOptions:
    """How to re-rank; `rerank` documents each.

    Raises:
        InputError: if a value is of another type or out of range.
    """

    order: str = "matched"
    max_passages: int = 10
    permutations: Spec | None = None
    prune: int | None = None
    prune_mass: float | None = None
    template: Template | None = None
    stopping: Stopping | None = None
    seed: int = 0
    on_overflow: str = "error"
    max_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        check_choice("on_overflow", self.on_overflow, POLICIES)
        check_int("max_passages", self.max_passages)

    def scoring(self) -> ScoreOptions:
        """Return the options of the scoring passes; what a bias needs besides is added to them."""
        from fastreader.scoring.options import ScoreOptions

        return ScoreOptions(
            prune=self.prune,
            prune_mass=self.prune_mass,
            template=self.template,
            question_only=True,
            on_overflow=self.on_overflow,
            max_batch_tokens=self.max_batch_tokens,
        )
