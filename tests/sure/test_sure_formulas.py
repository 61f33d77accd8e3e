"""The formulas of the paper: Eq. 4, 5 and 6, by hand."""

from __future__ import annotations

import math
from itertools import permutations, product

import pytest

from fastreader.sure.vote import (
    Choice,
    choice_of,
    comparisons,
    pair_value,
    ranking_scores,
    validity_value,
    vote,
    winner,
)


def test_choice_of_takes_the_likelier_label_and_its_share():
    choice = choice_of(math.log(0.3), math.log(0.1))
    assert choice.label == 0
    assert choice.probability == pytest.approx(0.75)
    assert choice_of(-2.0, -1.0).label == 1
    assert choice_of(-1.0, -1.0) == Choice(None, 0.5)
    assert choice_of(-2000.0, -1.0).probability == 0.0
    assert choice_of(-1.0, -2000.0).probability == 1.0


@pytest.mark.parametrize(("label", "v"), [(0, 1.0), (1, 0.0), (None, 0.0)])
def test_validity_is_one_for_true_only(label, v):
    assert validity_value(Choice(label, None)) == v


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [(0, 1, 1.0), (1, 0, 0.0), (0, 0, 0.5), (1, 1, 0.5), (None, 1, 0.5), (0, None, 0.5), (None, None, 0.5)],
)
def test_pair_value_collapses_two_orders(first, second, value):
    assert pair_value(first, second) == value


def test_three_summaries_by_hand():
    # 0 beats 1 in both orders, 0 and 2 each win standing first, 1 and 2: 2 wins in both.
    labels = {(0, 1): 0, (1, 0): 1, (0, 2): 0, (2, 0): 0, (1, 2): 1, (2, 1): 0}
    ordered = {pair: Choice(label, 0.9 - 0.8 * label) for pair, label in labels.items()}
    matrix, preference, replied = comparisons(ordered, 3)
    assert matrix == [[None, 1.0, 0.5], [0.0, None, 0.0], [0.5, 1.0, None]]
    assert replied == [[None, 1.0, 1.0], [0.0, None, 0.0], [1.0, 1.0, None]]
    assert preference[1] == pytest.approx([0.1, None, 0.1])
    assert ranking_scores(matrix) == [1.5, 0.0, 1.5]


def test_one_summary_scores_a_float_zero():
    assert [type(score) for score in ranking_scores([[None]])] == [float]


def test_three_summaries_always_share_three_points():
    pairs = list(permutations(range(3), 2))
    for labels in product((0, 1, None), repeat=6):
        ordered = {pair: Choice(label, None) for pair, label in zip(pairs, labels, strict=True)}
        assert sum(ranking_scores(comparisons(ordered, 3)[0])) == 3.0


def test_vote_weighs_validity_and_ranking_equally():
    assert vote([0.0, 1.0], [1.0, 0.0], 2) == [1.0, 1.0]
    assert vote(None, [1.0, 0.0], 2) == [1.0, 0.0]
    assert vote([0.0, 1.0], None, 2) == [0.0, 1.0]


def test_winner_is_the_earliest_of_equals():
    assert winner([1.0, 1.5, 1.5]) == 1
    assert winner([0.0]) == 0
