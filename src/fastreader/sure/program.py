"""SuRe as a program of one question: candidates, summaries, validity, ranking, vote."""

from __future__ import annotations

from fastreader.reader.programs.requests import Program
from fastreader.sure.candidates import propose
from fastreader.sure.labels import Choice
from fastreader.sure.ranking import Ordered, compare, pairwise_matrix, preferences, ranking_scores, replies
from fastreader.sure.replies import CandidateReply
from fastreader.sure.summaries import Summaries, summarise
from fastreader.sure.task import Task
from fastreader.sure.types import SureResult
from fastreader.sure.validity import validate, validity_value
from fastreader.sure.vote import vote, winner


def sure(task: Task) -> Program[SureResult]:
    """Algorithm 1 of the paper; the costs are put in by whoever runs it."""
    found = yield from propose(task)
    summaries = yield from summarise(task, found.candidates)
    result = yield from judge(task, found, summaries)
    return result


def judge(task: Task, found: CandidateReply, summaries: Summaries) -> Program[SureResult]:
    """Validity, ranking and vote over summaries that are there."""
    candidates, use = found.candidates, task.settings.use
    count = len(candidates)
    choices: list[Choice] = []
    if "validity" in use:
        choices = yield from validate(task, candidates, summaries.texts)
    ordered: Ordered = {}
    if "ranking" in use:
        ordered = yield from compare(task, summaries.texts)
    pairwise = pairwise_matrix(ordered, count)
    validity = [validity_value(choice) for choice in choices] if "validity" in use else None
    ranking = ranking_scores(pairwise) if "ranking" in use else None
    scores = vote(validity, ranking, count)
    if count == 0:
        task.notes.append("there is no candidate, so there is no answer")
    elif count == 1:
        task.notes.append("there is one candidate only; it wins without a vote")
    elif scores.count(max(scores)) > 1:
        task.notes.append(f"{scores.count(max(scores))} candidates score {max(scores):g}; the earliest wins")
    best = winner(scores) if scores else None
    return SureResult(
        question=task.question,
        answer="" if best is None else candidates[best],
        rationale="" if best is None else summaries.texts[best],
        candidates=candidates,
        found=found,
        summaries=summaries.texts,
        finishes=summaries.finishes,
        validity=validity,
        validity_probability=[choice.probability for choice in choices] or [None] * count,
        preference=preferences(ordered, count),
        replied=replies(ordered, count),
        pairwise=pairwise,
        ranking=ranking,
        scores=scores,
        mode=task.settings.mode,
        candidates_prompt=task.settings.candidates_prompt,
        use=list(use),
        num_passages=len(task.passages),
        readers=task.readers.describe(),
        notes=task.notes,
    )
