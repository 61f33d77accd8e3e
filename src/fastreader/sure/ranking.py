"""Stage 4: which summary informs the answer more, each pair asked in both orders (Eq. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from fastreader.core.protocol import TextOrTokens
from fastreader.reader.programs.requests import Program
from fastreader.sure.labels import Choice, choose
from fastreader.sure.task import Task
from fastreader.sure.types import Matrix

STAGE = "ranking"
Ordered = dict[tuple[int, int], Choice]


def compare(task: Task, summaries: Sequence[str]) -> Program[Ordered]:
    """For each ordered pair (i, j) label 0 where i, standing first, is preferred, and 1 where j is."""
    t = task.settings.template
    pairs = ordered_pairs(len(summaries))
    chosen = yield from choose(task, STAGE, ranking_prompts(task, summaries), (t.first, t.second))
    return dict(zip(pairs, chosen, strict=True))


def ordered_pairs(count: int) -> list[tuple[int, int]]:
    """All K(K - 1) ordered pairs, grouped by the first, which pairs of a group share.

    >>> ordered_pairs(2)
    [(0, 1), (1, 0)]
    """
    return list(permutations(range(count), 2))


def ranking_prompts(task: Task, summaries: Sequence[str]) -> list[TextOrTokens]:
    """The paper's Listing 4 for each ordered pair; the prompt holds two summaries and the question alone."""
    t = task.settings.template
    return [
        task.prompt(
            STAGE,
            [
                t.ranking,
                t.ranking_first.format(summary=summaries[i]),
                t.ranking_second.format(summary=summaries[j]),
                t.ranking_question.format(question=task.question),
            ],
        )
        for i, j in ordered_pairs(len(summaries))
    ]


def pair_value(first: int | None, second: int | None) -> float:
    """r_pair of Eq. 5 for summaries i and j: 1 when i is preferred in both orders, 0 when j is, 0.5 otherwise.

    Args:
        first: label chosen when i stands first: 0 prefers i.
        second: label chosen when j stands first: 1 prefers i.
    """
    return {(0, 1): 1.0, (1, 0): 0.0}.get((first, second), 0.5)  # type: ignore[arg-type]


def pairwise_matrix(ordered: Ordered, count: int) -> Matrix:
    """[K, K] of `pair_value`, None on the diagonal; entries [i][j] and [j][i] sum to 1."""
    matrix: Matrix = [[None] * count for _ in range(count)]
    for i, j in ordered:
        matrix[i][j] = pair_value(ordered[i, j].label, ordered[j, i].label)
    return matrix


def ranking_scores(matrix: Matrix) -> list[float]:
    """r of Eq. 5: the sum of each row."""
    return [sum((value for value in row if value is not None), 0.0) for row in matrix]


def preferences(ordered: Ordered, count: int) -> Matrix:
    """[K, K], share of the label that prefers the first of each ordered pair; None where there is none."""
    matrix: Matrix = [[None] * count for _ in range(count)]
    for (i, j), choice in ordered.items():
        matrix[i][j] = choice.probability
    return matrix


def replies(ordered: Ordered, count: int) -> Matrix:
    """[K, K], 1.0 where the first of an ordered pair was preferred, 0.0 where the second; None where neither."""
    matrix: Matrix = [[None] * count for _ in range(count)]
    for (i, j), choice in ordered.items():
        matrix[i][j] = None if choice.label is None else 1.0 - choice.label
    return matrix
