import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.eor import Answers, Exact, Function, Vote, Voter
from fastreader.errors import InputError

EQUAL = ("exact:equal",)


def table(values):
    """A similarity of one-letter answers from a table."""
    return Function("table", lambda a, b: values[frozenset((a, b))], symmetric=True)


def test_equations_6_and_7_by_hand():
    first = table({frozenset("xy"): 0.9, frozenset("xz"): 0.2, frozenset("yz"): 0.4})
    second = Function("other", lambda x, y: 0.5 if "z" in (x, y) else 0.0, symmetric=True)
    voter = Voter([first, second], retriever_weights=[0.3, 0.5, 0.2], similarity_weights=[0.6, 0.2])
    vote = voter.vote(["x", "y", "z"])
    # w^s is 0.75 and 0.25: S(x,y) = 0.675, S(x,z) = 0.15 + 0.125 = 0.275, S(y,z) = 0.3 + 0.125 = 0.425.
    assert vote.support.tolist() == pytest.approx([0.475, 0.55, 0.35])
    assert vote.scores.tolist() == pytest.approx([0.3 * 0.475, 0.5 * 0.55, 0.2 * 0.35])
    assert (vote.answer, vote.winner, vote.retriever, vote.abstained) == ("y", 1, "1", None)
    assert vote.similarities == ["table", "other"]
    np.testing.assert_allclose(vote.contributions[1], [0.5 * 0.75 * 0.65, 0.5 * 0.25 * 0.25])
    np.testing.assert_allclose(vote.contributions.sum(axis=1), vote.scores)


def test_max_by_hand():
    first = table({frozenset("xy"): 0.9, frozenset("xz"): 0.2, frozenset("yz"): 0.4})
    vote = Voter([first], pooling="max", retriever_weights=[0.2, 0.3, 1]).vote(["x", "y", "z"])
    assert vote.scores.tolist() == pytest.approx([0.18, 0.27, 0.4])


@pytest.mark.parametrize("pooling", ["majority", "plurality"])
def test_indicator_poolings_by_hand(pooling):
    answers = ["Paris", "Lyon", "Paris", "paris", "Nice"]
    vote = Voter(EQUAL, pooling=pooling, retriever_weights=[0.2, 0.9, 0.3, 0.3, 0.9]).vote(answers)
    # Three say the same, each with 2 of 4 others: half. The larger weights win, the first of them.
    assert vote.scores.tolist() == [0.2, 0, 0.3, 0.3, 0]
    assert vote.winner == 2


def test_unweighted_score_is_the_share_of_agreement():
    assert Voter(EQUAL).vote(["a1", "b1", "c1", "b1"]).answer == "b1"


def test_zero_similarity_weights_are_equal():
    answers = ["Paris", "Lyon", "Lyon"]
    zero = Voter(similarity_weights=[0, 0]).vote(answers)
    assert zero.to_dict() == Voter().vote(answers).to_dict() and zero.answer == "Lyon"


def test_ties_go_to_the_first_or_to_the_weight():
    answers = ["Lyon", "Paris", "Nice"]
    assert Voter(EQUAL).vote(answers).winner == 0
    weights = {"retriever_weights": [0.3, 0.6, 0.6]}
    assert Voter(EQUAL, **weights).vote(answers).winner == 0
    assert Voter(EQUAL, ties="weight", **weights).vote(answers).winner == 1


def test_rounding_does_not_break_ties():
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in floating point."""
    values = {"ad": 0.1, "ae": 0.2, "af": 0.3, "bd": 0.3, "be": 0.2, "bf": 0.1}
    similarity = Function("t", lambda x, y: values.get("".join(sorted(x[0] + y[0])), 0.0), symmetric=True)
    answers = ["b1", "a1", "d1", "e1", "f1"]
    assert Voter([similarity]).vote(answers).winner == 0
    assert Voter([similarity]).vote([answers[1], answers[0], *answers[2:]]).winner == 0


def test_empty_answers_and_refusals_support_nothing():
    vote = Voter().vote(["", "The", "I don't know", "I don't know", "Paris"])
    assert vote.answer == "Paris" and vote.support.tolist() == [0] * 5
    assert np.isneginf(vote.scores).tolist() == [True, True, True, True, False]


def test_all_answers_empty():
    vote = Voter().vote(["", "the", "  "])
    assert vote.answer is None and vote.winner is None and vote.abstained == "all answers are empty or refusals"
    with pytest.raises(InputError, match="all are empty"):
        Voter().fit([["", "the"]], [[0, 0]])


def test_failed_retriever_is_not_counted():
    vote = Voter(EQUAL).vote(["Paris", None, "Paris", "Lyon"])
    assert vote.support[0] == pytest.approx(1 / 2)  # 1 of 2 others, not of 3
    assert Voter(EQUAL, pooling="majority").vote(["Paris", None, "Paris", "Lyon"]).support.tolist() == [1, 0, 1, 0]
    assert Voter(EQUAL).vote([None, "Paris"]).answer == "Paris"
    assert Voter(EQUAL).vote([None, None]).abstained == "every retriever failed"


def test_refusal_counts_as_a_voter():
    assert Voter(EQUAL).vote(["Paris", "I don't know", "Paris"]).support[0] == pytest.approx(1 / 2)


def test_dropped_vote():
    answers = ["Lyon", "Paris", "Paris", "Lyon", "Lyon"]
    weights = [0.3, 0.3, 0.3, 0.1, 0.05]  # the last two are not above t
    both = Voter(EQUAL, retriever_weights=weights).vote(answers)
    assert both.answer == "Paris" and both.support.tolist() == pytest.approx([0, 0.5, 0.5, 1 / 3, 1 / 3])
    candidate = Voter(EQUAL, retriever_weights=weights, dropped_vote=True).vote(answers)
    assert candidate.answer == "Lyon" and candidate.winner == 0
    assert candidate.support.tolist() == pytest.approx([0.5, 0.25, 0.25, 0.5, 0.5])
    assert np.isneginf(candidate.scores).tolist() == [False, False, False, True, True]


def test_nobody_selected():
    vote = Voter(EQUAL, retriever_weights=[0.1, 0]).vote(["a1", "a1"])
    assert vote.answer is None and "selected" in vote.abstained


def test_abstaining():
    voter = Voter(EQUAL, min_support=0.5)
    assert voter.vote(["Paris", "Paris", "Lyon"]).answer == "Paris"
    vote = voter.vote(["Paris", "Nice", "Lyon"])
    assert vote.answer is None and "0.5" in vote.abstained
    assert voter.predict([["a1", "a1"], ["a1", "b1"]]).tolist() == ["a1", None]
    assert voter.winners([["a1", "a1"], ["a1", "b1"]]).tolist() == [0, -1]
    assert voter.score([["a1", "a1"], ["a1", "b1"]], [[1, 1], [1, 0]]) == 0.5


def test_one_question_or_several():
    voter = Voter()
    (one,) = voter.vote([["Paris", "Paris"]])
    assert isinstance(one, Vote) and voter.vote(("Paris", "Paris")).answer == one.answer
    rows = [Answers("q", ["A", "B"], ["x y", "x"]), Answers("r", ["A", "B"], ["z", None])]
    assert [v.retriever for v in voter.vote(rows)] == ["A", "A"]
    assert voter.vote(rows[0]).to_dict() == voter.vote(rows)[0].to_dict()
    assert [v.answer for v in voter.vote(np.array([["x1", "x1"], ["y1", None]], dtype=object))] == ["x1", "y1"]


answer_texts = st.sampled_from(["Paris", "Paris, France", "Lyon", "the city of Lyon", "", "I don't know", None, "Nice"])


@given(
    st.lists(st.lists(answer_texts, min_size=4, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["mean", "max", "majority", "plurality"]),
    st.booleans(),
)
def test_vote_is_batch_invariant_and_contributions_sum(rows, pooling, dropped):
    voter = Voter(pooling=pooling, dropped_vote=dropped, retriever_weights=[0.5, 0.05, 0.2, 0.6])
    votes = voter.vote(rows)
    for row, vote in zip(rows, votes, strict=True):
        assert voter.vote([row])[0].to_dict() == vote.to_dict()
        finite = np.isfinite(vote.scores)
        np.testing.assert_allclose(vote.contributions.sum(axis=1)[finite], vote.scores[finite], atol=1e-9)
        assert not vote.contributions[~finite].any()
        assert Vote.from_dict(json.loads(json.dumps(vote.to_dict()))).to_dict() == vote.to_dict()


def test_reversing_the_retrievers_reverses_the_scores():
    answers = ["Paris", "Paris, France", "Lyon", "France"]
    there, back = Voter().vote(answers), Voter().vote(answers[::-1])
    np.testing.assert_allclose(there.scores, back.scores[::-1])


NAMED = Answers("q", ["A", "B"], ["Paris", "Lyon"])


@pytest.mark.parametrize(
    ("options", "answers", "expected"),
    [
        ({}, ["Paris"], "at least 2 retrievers"),
        ({}, Answers("q", ["A"], ["Paris"]), "at least 2 retrievers"),
        ({}, [], "at least one question"),
        ({}, [["a1", "b1"], ["a1"]], r"answers\[1\]"),
        ({}, [["a1", 5]], "5"),
        ({}, [5], "a list of texts, got 5"),
        ({}, [NAMED, ["a1", "b1"]], "for all questions or for none"),
        ({}, [NAMED, Answers("q", ["B", "C"], ["x", "y"])], "retrievers"),
        ({"retriever_weights": [1, 1, 1]}, NAMED, "retriever_weights: expected 2"),
        ({"retriever_weights": [1, -1]}, NAMED, "retriever_weights"),
        ({"retriever_weights": [1, float("nan")]}, NAMED, "retriever_weights"),
        ({"retriever_weights": ["a", "b"]}, NAMED, "retriever_weights: expected 2 numbers of at least 0, got"),
        ({"similarity_weights": ["a", "b"]}, NAMED, "similarity_weights: expected 2 numbers of at least 0, got"),
        ({"retriever_weights": {"A": 1}}, NAMED, "for each of A, B"),
        ({"retriever_weights": {"A": 1, "B": 1}}, ["x", "y"], "without names"),
        ({"similarity_weights": [1]}, NAMED, "similarity_weights: expected 2"),
        ({"similarities": []}, NAMED, "similarities"),
        ({"similarities": "exact"}, NAMED, "similarities"),
        ({"similarities": ["exact", Exact()]}, NAMED, "once"),
        ({"pooling": "median"}, NAMED, "mean, max, majority, plurality, got 'median'"),
        ({"ties": "last"}, NAMED, "last"),
        ({"min_support": float("nan")}, NAMED, "min_support: expected a number, got nan"),
        ({"retriever_threshold": None}, NAMED, "retriever_threshold: expected a number, got None"),
        ({"similarity_threshold": "0.8", "pooling": "majority"}, NAMED, "similarity_threshold: expected a number"),
    ],
)
def test_invalid_votes_raise(options, answers, expected):
    with pytest.raises(InputError, match=expected):
        Voter(**options).vote(answers)


@pytest.mark.parametrize("method", ["vote", "predict", "winners"])
@pytest.mark.parametrize("answers", [None, 5, {"A": "x", "B": "y"}, iter([["x", "y"]]), "xy"])
def test_invalid_answer_lists_raise(method, answers):
    with pytest.raises(InputError, match=f"list with the answers to each question, got {re.escape(repr(answers))}"):
        getattr(Voter(), method)(answers)


def test_one_answers_is_accepted_only_by_vote():
    assert Voter().vote(NAMED).answer is not None
    for method in (Voter().predict, Voter().winners, lambda X: Voter().score(X, [[1, 0]]), lambda X: Voter().fit(X, 1)):
        with pytest.raises(InputError, match="one Answers; put it into a list"):
            method(NAMED)


def test_repr_shows_given_parameters():
    assert repr(Voter([Exact(), "nli:reader", max])) == "Voter(exact, nli:reader, max; mean; unweighted)"
    assert repr(Voter("f1", retriever_weights=[1, 0], pooling="max")) == "Voter(f1; max; weighted)"


def test_weights_by_name():
    voter = Voter(EQUAL, retriever_weights={"B": 0.6, "A": 0.3})
    assert voter.vote(NAMED).scores.tolist() == [0, 0]
    row = Answers("q", ["A", "B"], ["x", "x"])
    assert voter.vote(row).scores.tolist() == [0.3, 0.6]


def test_malformed_vote_raises():
    with pytest.raises(InputError, match=r"Vote\.from_dict"):
        Vote.from_dict({"answer": "x"})
