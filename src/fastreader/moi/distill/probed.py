"""Probed: a student as the probe of a reader's packed pass sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.ops.linear_logprob import LogprobStats

if TYPE_CHECKING:
    from fastreader.moi.distill.student import Student


class Probed:
    """A student before its first step, as `probe` reads a model: an untrained adapter changes nothing."""

    def __init__(self, student: Student, original: Any) -> None:
        self.student, self.original = student, original
        self.name, self.head, self.max_length = student.name, student._head, student.max_length
        self.dtype: torch.dtype = original.dtype
        self.precision = "exact" if self.dtype in (torch.float32, torch.float64) else "fast"

    @torch.no_grad()
    def score(self, tree: PrefixTree) -> LogprobStats:
        """As `TreeModel.score`, without what a probe does not look at."""
        unused = torch.empty(0)
        return LogprobStats(self.student._pair_logprobs(tree), unused, unused, unused)

    @torch.no_grad()
    def own_logprobs(self, tokens: list[int]) -> Tensor:
        """As `TreeModel.own_logprobs`, by the model that the student was made from."""
        ids = torch.tensor([tokens], device=self.student.device)
        was = self.original.training
        logits: Tensor = self.original.eval()(input_ids=ids, use_cache=False).logits[0, :-1]
        self.original.train(was)
        wide = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
        return wide.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
