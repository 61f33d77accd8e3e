"""self-consistency: answers after random orders of the passages, and their majority or their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_int
from fastreader.data import Example
from fastreader.moi.baselines.consistency import majority, shuffles
from fastreader.reader.programs.requests import Program, write
from fastreader.study.method import Answered, Batch, Family, check_options
from fastreader.study.methods.reading import STOP, TemplateMethod

_OPTIONS = ("count", "max_new_tokens")
ORDERS = 30
"""Random orders of a question, as in MoI's appendix."""


@dataclass(frozen=True)
class SelfConsistencyMethod(TemplateMethod):
    """A greedy answer after each of `count` random orders, all distinct.

    Attributes:
        count: number of orders, at most N!.
        mean: measure the mean over all answers, the paper's "Random", instead of the most frequent answer. Both use
            the same answers, so the second one of a study computes nothing.
    """

    reads = "self-consistency"
    count: int = ORDERS
    mean: bool = False

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return True

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        from fastreader.scoring.reading import reading_prompts

        orders = shuffles(len(example.passages), self.count, batch.seed)
        reader = batch.reader.tree_reader()
        prompts = reading_prompts(reader, example.question, example.passages, orders, self.template)
        replies = yield from write("answer", prompts, max_new_tokens=self.max_new_tokens, stop=STOP)
        answers = [texts[0].text.strip() for texts in replies]
        answer, share = majority(answers)
        trace = {"orders": orders, "answers": answers, "share": share}
        return Answered(answer, trace, texts=tuple(answers) if self.mean else ())


def _make(variant: str, options: dict[str, Any], study: Any) -> SelfConsistencyMethod:
    check_options("self-consistency", options, _OPTIONS)
    check_int("method 'self-consistency': count", options.get("count", ORDERS))
    return SelfConsistencyMethod.of(study, {**options, "mean": variant == "mean"})


SELF_CONSISTENCY = Family(
    "self-consistency",
    "the most frequent answer over random orders, or the mean over all of them",
    _make,
    lambda _: _OPTIONS,
    ("", "mean"),
)
