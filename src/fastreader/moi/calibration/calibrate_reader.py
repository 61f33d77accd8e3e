"""calibrate_reader: measure a reader's position bias from questions without labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect, require
from fastreader.core.progress import track
from fastreader.data.arguments import keyed
from fastreader.data.fingerprints import digest, reader_identity
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.data.types import Example
from fastreader.moi.calibration.settling import LEAST, is_look, look, undecidable
from fastreader.moi.calibration.store import keep as keep_bias
from fastreader.moi.quantities.observations import Observations, observe
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.permutations import latin

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.prepare import ScoringJob

MOST = 120
_TOGETHER = 4  # questions that share a call of the reader
_DESIGN = "latin:1"


@dataclass(frozen=True)
class CalibrationCost:
    """Cost of `calibrate_reader`, known before anything runs.

    Attributes:
        questions: number of questions that it may take.
        orderings: of these questions.
        first_tokens: tokens to compute until the first look, which settles a clear bias.
        all_tokens: tokens to compute if all questions are needed.
    """

    questions: int
    orderings: int
    first_tokens: int
    all_tokens: int


@checked
def calibrate_reader(
    reader: ScoringReader,
    questions: Iterable[Example],
    *,
    num_passages: int | None = None,
    template: Template | None = None,
    most: int = MOST,
    output: str | os.PathLike[str] | None = None,
    keep: bool = True,
    seed: int = 0,
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
) -> PositionBias:
    """Measure the position bias of a reader without labels, from as few questions as settle it.

    Each question is scored under the N orderings of a separate Latin square, and after each passage alone. At 20
    questions, and whenever a quarter more are scored, `calibrate` fits them. The bias is settled if query likelihoods
    explain the scores by place beyond chance (p < 1e-4, which also decides the sign), the fitted bias agrees, and the
    best place is the best, or nearly, with a probability of 0.95. Otherwise scoring continues.

    Args:
        reader: any reader that scores token ids.
        questions: with passages in the retriever's order; answers and marks are not used. Those with fewer than N
            passages are left out, further passages are not read.
        num_passages: N, at least 3; None takes that of the first question.
        template: the prompt's texts.
        most: score at most this number of questions.
        output: keep the scores in this .jsonl file, from which an interrupted measurement resumes. None keeps none.
        keep: save a settled bias in the cache folder, where `rerank`, `answer` and `arrange` find it.
        seed: of the orderings and the fit.
        max_batch_tokens: same as `score_permutations`.
        progress: show a bar; None shows it on a terminal.

    Returns:
        The calibration. If nothing is settled, its `reason` says what is open, `flat` is True if no bias shows, and
        it is not kept. `measured_on` has the number of questions used and whether the bias is settled.

    Raises:
        InputError: if fewer than 20 questions have N passages, or `output` holds scores made in another way.
        ContextOverflowError: if an ordering is longer than the model's context.
    """
    chosen, n = _chosen(questions, num_passages, most)
    observed: list[Observations] = []
    with ExitStack() as stack:
        rows = _ScoreRows(stack, output, reader, template, n, seed)
        advance = stack.enter_context(track("calibrating", len(chosen), "questions", progress))
        found = None
        for one in rows.scored(reader, chosen, template, seed, max_batch_tokens):
            observed.append(one)
            advance(1)
            if is_look(len(observed)) and (found := look(observed, seed)).settled:
                break
    settled = found is not None and found.settled and found.bias is not None
    bias = found.bias if settled and found is not None and found.bias is not None else undecidable(observed, seed)
    made = {"questions": len(observed), "design": _DESIGN, "seed": seed, "labels": False, "settled": settled}
    bias = replace(bias, measured_on=made)
    if settled and keep:
        keep_bias(bias)
    return bias


@checked
def calibration_cost(
    reader: ScoringReader,
    questions: Iterable[Example],
    *,
    num_passages: int | None = None,
    template: Template | None = None,
    most: int = MOST,
    seed: int = 0,
    max_batch_tokens: int | None = None,
) -> CalibrationCost:
    """Return the cost of `calibrate_reader` with these arguments, with the same errors, without running it."""
    chosen, n = _chosen(questions, num_passages, most)
    tokens = [_job(reader, e, q, template, seed, max_batch_tokens).stats.computed_tokens for q, e in enumerate(chosen)]
    return CalibrationCost(len(chosen), n * len(chosen), sum(tokens[:LEAST]), sum(tokens))


def _chosen(questions: Iterable[Example], num_passages: int | None, most: int) -> tuple[list[Example], int]:
    """Return the questions to score, each with N passages and its own id, and N."""
    check_int("num_passages", num_passages, 3, optional=True)
    check_int("most", most, LEAST)
    given = list(keyed(questions))
    expect(bool(given), "questions", f"at least {LEAST}", 0)
    n = len(given[0].passages) if num_passages is None else num_passages
    expect(n >= 3, "questions", "at least 3 passages of the first question, or num_passages", n)
    fit = [replace(e, passages=e.passages[:n], candidates=[]) for e in given if len(e.passages) >= n]
    require(len(fit) >= LEAST, f"questions: expected at least {LEAST} with {n} passages, got {len(fit)}")
    return fit[:most], n


def _job(
    reader: ScoringReader, example: Example, q: int, template: Template | None, seed: int, budget: int | None
) -> ScoringJob:
    from fastreader.scoring.prepare import ScoreOptions, prepare

    options = ScoreOptions(
        permutations=latin(len(example.passages), 1, seed + q),
        template=template,
        question_only=True,
        query_likelihood=True,
        max_batch_tokens=budget,
    )
    return prepare(reader, example, options, f"questions: id {example.id}")


class _ScoreRows:
    """Scores of questions, from a file if there is one and it has them."""

    def __init__(
        self,
        stack: ExitStack,
        output: str | os.PathLike[str] | None,
        reader: ScoringReader,
        template: Template | None,
        passages: int,
        seed: int,
    ) -> None:
        from fastreader.reader.prompts.template import as_template

        self.about, self.template = reader.describe(), as_template(template).digest()
        self.log: ResultLog | None = None
        self.held: dict[str, dict[str, Any]] = {}
        if output is None:
            return
        settings = {
            "reader": reader_identity(self.about),
            "template": self.template,
            "passages": passages,
            "design": _DESIGN,
            "seed": seed,
        }
        self.log = stack.enter_context(ResultLog(output, settings=settings, resume=True))
        self.held = {row["id"]: row for row in iter_results(output)}

    def scored(
        self, reader: ScoringReader, chosen: Sequence[Example], template: Template | None, seed: int, budget: int | None
    ) -> Iterator[Observations]:
        """Yield the scores in the questions' order, making and adding the missing ones in batches."""
        from fastreader.scoring.passes import score_jobs

        for start in range(0, len(chosen), _TOGETHER):
            group = list(enumerate(chosen[start : start + _TOGETHER], start))
            made_from = {str(e.id): digest([e.question, [[p.title, p.text] for p in e.passages]]) for _, e in group}
            todo = [(q, e) for q, e in group if self.log is None or not self.log.holds(str(e.id), made_from[str(e.id)])]
            made = score_jobs(reader, [_job(reader, e, q, template, seed, budget) for q, e in todo]) if todo else []
            found = {str(e.id): observe(scores) for (_, e), scores in zip(todo, made, strict=True)}
            for key, one in found.items():
                if self.log is not None:
                    assert one.qg is not None
                    row = {"permutations": one.permutations.tolist(), "values": one.values.tolist()}
                    self.log.append(key, {**row, "qg": one.qg.tolist()}, example=made_from[key])
            for _, example in group:
                yield found.get(str(example.id)) or self._from_row(self.held[str(example.id)])

    def _from_row(self, row: dict[str, Any]) -> Observations:
        permutations = np.array(row["permutations"], dtype=np.int64)
        return Observations(
            values=np.array(row["values"]),
            permutations=permutations,
            passages=permutations.shape[1],
            qg=np.array(row["qg"]),
            reader=self.about,
            template=self.template,
            id=row["id"],
        )
