"""Answers after several orders of the passages: their majority, their mean, or the most probable over all orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_int, expect
from fastreader.data import Example
from fastreader.moi.baselines.consistency import majority, shuffles
from fastreader.permutations import resolve
from fastreader.reader.programs.requests import Program, write
from fastreader.scoring.api import score_permutations
from fastreader.scoring.marginal_answer import distinct, marginal
from fastreader.scoring.reading import reading_prompts
from fastreader.study.cached_reader import scoring
from fastreader.study.method import NOTHING, Answered, Batch, Family, check_options
from fastreader.study.methods.reading import STOP, TemplateMethod

_SELF_CONSISTENCY = ("count", "max_new_tokens")
_MARGINAL = ("permutations", "max_new_tokens")
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
        orders = shuffles(len(example.passages), self.count, batch.seed)
        answers = yield from self._answers(batch, example, orders)
        answer, share = majority(answers)
        trace = {"orders": orders, "answers": answers, "share": share}
        return Answered(answer, trace)

    def measured(self, answer: str, trace: Mapping[str, Any]) -> Sequence[str]:
        """Return the answers after all orders if their mean is measured, else the most frequent one."""
        return list(trace["answers"]) if self.mean else [answer]


def _self_consistency(variant: str, options: dict[str, Any], study: Any) -> SelfConsistencyMethod:
    check_options("self-consistency", options, _SELF_CONSISTENCY)
    check_int("method 'self-consistency': count", options.get("count", ORDERS))
    return SelfConsistencyMethod.of(study, {**options, "mean": variant == "mean"})


@dataclass(frozen=True)
class MarginalMethod(TemplateMethod):
    """The method of `moi.marginal_answer`.

    Attributes:
        permutations: name of the orderings.
    """

    reads = "marginal"
    permutations: str = "cyclic"

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return self.permutations.partition(":")[0] not in ("identity", "cyclic", "cyclic_reversed")

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        design = resolve(self.permutations, len(example.passages), batch.seed)
        reader, orders = batch.reader.tree_reader(), design.permutations.tolist()
        prompts = reading_prompts(reader, example.question, example.passages, orders, self.template)
        replies = yield from write("answer", prompts, max_new_tokens=self.max_new_tokens, stop=STOP)
        candidates, written = distinct([texts[0].text for texts in replies])
        scores = None
        if candidates:
            settings: dict[str, Any] = {"permutations": design, "template": self.template}
            scores = yield from scoring(
                "marginal",
                batch.reader,
                lambda found: score_permutations(found, example, candidates=candidates, **settings),
            )
        result = marginal(candidates, written, scores, NOTHING)
        trace = {
            "candidates": candidates,
            "probabilities": result.probabilities.tolist(),
            "written": written,
            "confidence": result.confidence,
        }
        return Answered(result.text, trace, result=result)


def _marginal(variant: str, options: dict[str, Any], study: Any) -> MarginalMethod:
    check_options("marginal", options, _MARGINAL)
    permutations = options.get("permutations", "cyclic")
    expect(isinstance(permutations, str), "method 'marginal': permutations", "the name of a design", permutations)
    resolve(permutations, 2)  # an unknown name fails before the run
    return MarginalMethod.of(study, options)


SELF_CONSISTENCY = Family(
    "self-consistency",
    _self_consistency,
    lambda _: _SELF_CONSISTENCY,
    {
        "": "Answer under random orders of the passages, and take the most frequent answer.",
        "mean": "Answer under random orders of the passages, and take the mean of what is measured over them.",
    },
)
MARGINAL = Family(
    "marginal",
    _marginal,
    lambda _: _MARGINAL,
    {"": "Generate answers under several orders, and take the most probable one over all of them."},
)
