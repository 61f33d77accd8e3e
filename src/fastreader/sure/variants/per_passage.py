"""Answer from each passage, then by a vote (Rerank) or a mixture over the passages (RePlug)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastreader.core.protocol import TextOrTokens
from fastreader.reader.programs.requests import Program, score
from fastreader.statistics.measures.answers import normalise
from fastreader.sure.replies import short_answer
from fastreader.sure.task import Task
from fastreader.sure.types import Result
from fastreader.sure.variants.ablations import STAGE, base_pieces, write_answers
from fastreader.sure.variants.method import finished
from fastreader.sure.variants.weights import passage_weights

FloatArray = npt.NDArray[np.float64]


def rerank(task: Task) -> Program[Result]:
    """Answer by a vote, each passage's answer with its passage's weight (Lazaridou et al. 2022); by default TF-IDF."""
    weights = passage_weights(task, "tfidf")
    answers = yield from answers_of_passages(task)
    kinds, votes = weighted_votes(answers, weights)
    best = kinds[int(np.argmax(votes))] if kinds else ""
    return finished(task, best, answers=answers, weights=weights.tolist(), kinds=kinds, votes=votes.tolist())


def replug(task: Task) -> Program[Result]:
    """Answer by the likeliest of the passages' answers in the mixture of all passages (Shi et al. 2023, Eq. 2).

    p(y | q) = sum over passages d of weight(d) p(y | d, q). By default the weights come from a sentence encoder. The
    probabilities of all answers after all passages are one packed pass.
    """
    weights = passage_weights(task, "encoder")
    answers = yield from answers_of_passages(task)
    kinds, _ = weighted_votes(answers, weights)
    if not kinds:
        return finished(task, "", answers=answers, weights=weights.tolist(), kinds=[], logprobs=[])
    prompts = passage_prompts(task)
    # With its end: without it, the beginning of another answer would be at least as likely as that answer.
    labels = [task.label(STAGE, kind, end=True) for kind in kinds]
    scored = yield from score(STAGE, [(prompt, label) for prompt in prompts for label in labels])
    table = np.array([s.logprob for s in scored]).reshape(len(prompts), len(kinds))
    mixed = mixture(table, weights)
    best = kinds[int(np.argmax(mixed))]
    return finished(task, best, answers=answers, weights=weights.tolist(), kinds=kinds, logprobs=mixed.tolist())


def answers_of_passages(task: Task) -> Program[list[str]]:
    """Return the short answer from each single passage, in one call."""
    replies = yield from write_answers(task, passage_prompts(task))
    return list(map(short_answer, replies))


def passage_prompts(task: Task) -> list[TextOrTokens]:
    """Return the base prompt over each single passage."""
    tail = base_pieces(task)
    return [task.after_passages(STAGE, [tail], [passage])[0] for passage in task.passages]


def weighted_votes(answers: Sequence[str], weights: FloatArray) -> tuple[list[str], FloatArray]:
    """Return the distinct answers that are not empty, as first written, with the sums of their weights.

    Args:
        answers: N texts.
        weights: float64 [N].

    Returns:
        A texts in order of appearance, and float64 [A].
    """
    first: dict[str, str] = {}
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, weights.tolist(), strict=True):
        if key := normalise(answer) or answer.casefold():
            first.setdefault(key, answer)
            votes[key] = votes.get(key, 0.0) + weight
    return list(first.values()), np.array(list(votes.values()))


def mixture(logprobs: FloatArray, weights: FloatArray) -> FloatArray:
    """Return log of sum over d of weights[d] exp(logprobs[d, a]): float64 [N, A] and [N] to [A], nats."""
    with np.errstate(divide="ignore"):
        terms = logprobs + np.log(weights)[:, None]
    highest = terms.max(axis=0)
    mixed: FloatArray = highest + np.log(np.exp(terms - highest).sum(axis=0))
    return mixed
