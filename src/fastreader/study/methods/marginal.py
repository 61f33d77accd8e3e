"""marginal: answers written under several orders, scored under all of them; the largest mean probability wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastreader.core.checks import expect
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.permutations import Design, resolve
from fastreader.reader.programs.requests import Program, write
from fastreader.reader.prompts.template import Template
from fastreader.scoring.api import score_permutations
from fastreader.scoring.marginal_answer import STOP, distinct, marginal
from fastreader.scoring.reading import reading_prompts
from fastreader.study.cached_reader import scoring
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod, check_options
from fastreader.study.methods.reading import template_of

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.scoring.results import PermutationScores

_OPTIONS = ("permutations", "max_new_tokens")


@dataclass(frozen=True)
class MarginalMethod(StudyMethod):
    """The method of `moi.marginal_answer`.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: at most this many tokens of an answer.
        permutations: name of the orderings.
    """

    template: Template
    max_new_tokens: int
    permutations: str

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return self.permutations.partition(":")[0] not in ("identity", "cyclic", "cyclic_reversed")

    def program(self, batch: Batch, example: Example) -> Program[Answered]:
        """Return the program for one question; see `StudyMethod.program`."""
        if not example.passages:
            raise NotApplicable("marginal: the question has no passages")
        design = resolve(self.permutations, len(example.passages), batch.seed)
        reader, orders = batch.reader.tree_reader(), design.permutations.tolist()
        prompts = reading_prompts(reader, example.question, example.passages, orders, self.template)
        replies = yield from write("answer", prompts, max_new_tokens=self.max_new_tokens, stop=STOP)
        candidates, written = distinct([texts[0].text for texts in replies])
        scores = None
        if candidates:
            scores = yield from scoring(
                "marginal", batch.reader, lambda found: self._score(found, example, candidates, design)
            )
        result = marginal(candidates, written, scores, TreeStats(0, 0, 0, 0))
        trace = {
            "candidates": candidates,
            "probabilities": result.probabilities.tolist(),
            "written": written,
            "confidence": result.confidence,
        }
        return Answered(result.text, trace, result=result)

    def _score(
        self, reader: ScoringReader, example: Example, candidates: list[str], design: Design
    ) -> PermutationScores:
        return score_permutations(reader, example, candidates=candidates, permutations=design, template=self.template)


def _make(variant: str, options: dict[str, Any], study: Any) -> MarginalMethod:
    check_options("marginal", options, _OPTIONS)
    permutations = options.get("permutations", "cyclic")
    expect(isinstance(permutations, str), "method 'marginal': permutations", "the name of a design", permutations)
    resolve(permutations, 2)  # an unknown name fails before the run
    tokens = options.get("max_new_tokens", study.max_new_tokens)
    return MarginalMethod(template_of(study), tokens, permutations)


MARGINAL = Family(
    "marginal",
    "answers written under several orders, the most probable over all",
    lambda: [""],
    _make,
    lambda _: _OPTIONS,
)
