"""marginal: the most probable of the answers generated under several orders, by its mean over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import expect
from fastreader.data import Example
from fastreader.permutations import resolve
from fastreader.reader.programs.requests import Program, write
from fastreader.scoring.api import score_permutations
from fastreader.scoring.marginal_answer import STOP, distinct, marginal
from fastreader.scoring.reading import reading_prompts
from fastreader.study.cached_reader import scoring
from fastreader.study.method import NOTHING, Answered, Batch, Family, check_options
from fastreader.study.methods.reading import TemplateMethod

_OPTIONS = ("permutations", "max_new_tokens")


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


def _make(variant: str, options: dict[str, Any], study: Any) -> MarginalMethod:
    check_options("marginal", options, _OPTIONS)
    permutations = options.get("permutations", "cyclic")
    expect(isinstance(permutations, str), "method 'marginal': permutations", "the name of a design", permutations)
    resolve(permutations, 2)  # an unknown name fails before the run
    return MarginalMethod.of(study, options)


MARGINAL = Family(
    "marginal",
    "answers written under several orders, the most probable over all",
    _make,
    lambda _: _OPTIONS,
)
