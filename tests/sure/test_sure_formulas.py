"""The formulas of the paper: Eq. 4, 5 and 6, by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest

from fastreader.sure.labels import Choice, choice_of
from fastreader.sure.ranking import ordered_pairs, pair_value, pairwise_matrix, ranking_scores
from fastreader.sure.validity import validity_value
from fastreader.sure.vote import vote, winner


def test_the_likelier_label_and_its_share():
    choice = choice_of(math.log(0.3), math.log(0.1))
    assert choice.label == 0
    assert choice.probability == pytest.approx(0.75)
    assert choice_of(-2.0, -1.0).label == 1
    assert choice_of(-1.0, -1.0) == Choice(None, 0.5)
    assert choice_of(-2000.0, -1.0).probability == 0.0
    assert choice_of(-1.0, -2000.0).probability == 1.0


@pytest.mark.parametrize(("label", "v"), [(0, 1.0), (1, 0.0), (None, 0.0)])
def test_validity_is_one_for_true_alone(label, v):
    assert validity_value(Choice(label, None)) == v


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [(0, 1, 1.0), (1, 0, 0.0), (0, 0, 0.5), (1, 1, 0.5), (None, 1, 0.5), (0, None, 0.5), (None, None, 0.5)],
)
def test_two_orders_collapse_to_one_value(first, second, value):
    assert pair_value(first, second) == value


def test_three_summaries_by_hand():
    # 0 beats 1 in both orders, 0 and 2 each win standing first, 1 and 2: 2 wins in both.
    labels = {(0, 1): 0, (1, 0): 1, (0, 2): 0, (2, 0): 0, (1, 2): 1, (2, 1): 0}
    matrix = pairwise_matrix({pair: Choice(label, None) for pair, label in labels.items()}, 3)
    assert matrix == [[None, 1.0, 0.5], [0.0, None, 0.0], [0.5, 1.0, None]]
    assert ranking_scores(matrix) == [1.5, 0.0, 1.5]


def test_one_summary_has_no_points_and_they_are_a_float():
    assert [type(score) for score in ranking_scores([[None]])] == [float]


def test_every_outcome_of_three_summaries_shares_three_points():
    pairs = ordered_pairs(3)
    assert len(pairs) == 6
    for labels in product((0, 1, None), repeat=6):
        ordered = {pair: Choice(label, None) for pair, label in zip(pairs, labels, strict=True)}
        assert sum(ranking_scores(pairwise_matrix(ordered, 3))) == 3.0


def test_validity_and_ranking_count_the_same():
    assert vote([0.0, 1.0], [1.0, 0.0], 2) == [1.0, 1.0]
    assert vote(None, [1.0, 0.0], 2) == [1.0, 0.0]
    assert vote([0.0, 1.0], None, 2) == [0.0, 1.0]


def test_the_earlier_of_equals_wins():
    assert winner([1.0, 1.5, 1.5]) == 1
    assert winner([0.0]) == 0
