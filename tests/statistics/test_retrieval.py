"""Retrieval measures by hand."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from fastreader.data import Example, Passage
from fastreader.errors import FastreaderError, InputError, MissingExtraError
from fastreader.statistics.measures.retrieval import retrieval_measures


def ranked(*flags: bool | None, answers: tuple[bool | None, ...] = ()) -> Example:
    answers = answers or (None,) * len(flags)
    return Example(
        "who?", [Passage("text", id="same", is_gold=g, has_answer=a) for g, a in zip(flags, answers, strict=True)]
    )


def test_by_hand():
    """Gold at places 1, 3 and nowhere: nDCG 1, 1 / log2(4), 0."""
    result = retrieval_measures(
        [ranked(True, False, False), ranked(False, False, True), ranked(False, False, False)],
        ["nDCG@10", "RR", "R@1", "R@5"],
    )
    assert result.per_question["nDCG@10"] == pytest.approx([1.0, 1 / math.log2(4), 0.0])
    assert result.per_question["RR"] == pytest.approx([1.0, 1 / 3, 0.0])
    assert result.per_question["R@1"] == [1.0, 0.0, 0.0]
    assert result.per_question["R@5"] == [1.0, 1.0, 0.0]
    assert result.means["RR"] == pytest.approx(4 / 9)


def test_two_names_of_one_measure_share_values():
    result = retrieval_measures([ranked(False, True)], ["RR", "MRR"])
    assert result.per_question == {"RR": [0.5], "MRR": [0.5]}


def test_missing_value_raises(monkeypatch):
    import ir_measures

    monkeypatch.setattr(ir_measures, "iter_calc", lambda measures, relevances, run: iter(()))
    with pytest.raises(FastreaderError, match=r"no RR for examples\[0\]"):
        retrieval_measures([ranked(True)], ["RR"])


def test_more_than_ten_passages_keep_their_order():
    """Ranks compared as text would sort "10" before "2"."""
    flags = [False] * 12
    flags[10] = True
    result = retrieval_measures([ranked(*flags)], ["RR", "R@10", "R@20"])
    assert result.per_question == {"RR": [pytest.approx(1 / 11)], "R@10": [0.0], "R@20": [1.0]}


def test_qrels_match_trec_eval():
    """Six relevant documents, two of them retrieved, at places 1 and 4. One counts for three."""
    names = ["d0", "x", "y", "d1", "z"]
    question = Example("q", [Passage("text", id=n, is_gold=n in ("d0", "d1")) for n in names], id="q1")
    judged = {"q1": {"x": 0, "d1": 3} | {f"d{i}": 1 for i in (0, 2, 3, 4, 5)}}
    measures = ["nDCG@10", "RR", "R@1", "R@5"]
    result = retrieval_measures([question], measures, qrels=judged)
    gains = 1 + 3 / math.log2(5)
    ideal = 3 + sum(1 / math.log2(place + 1) for place in range(2, 7))
    expected = {"nDCG@10": gains / ideal, "RR": 1.0, "R@1": 1 / 6, "R@5": 2 / 6}
    assert result.means == pytest.approx(expected)
    unjudged = Example("q", question.passages, id="q2")
    nothing = Example("q", [], id="q1")
    result = retrieval_measures([unjudged, nothing], measures, qrels=judged)
    assert (result.left_out, result.indices, set(result.means.values())) == (1, [1], {0.0})
    for wrong, named in ((ranked(True), "expected an id to look up"), (replace(ranked(True, True), id="q1"), "'same'")):
        with pytest.raises(InputError, match=named):
            retrieval_measures([wrong], measures, qrels=judged)


@pytest.mark.parametrize(
    ("qrels", "named"),
    [
        ([("q1", "d1", 1)], r"qrels: expected grades by question and document, got \[\('q1'"),
        ({"q1": ["d1"]}, r"qrels\['q1'\]: expected a grade for each document, got \['d1'\]"),
        ({"q1": {"d1": 1.0}}, r"qrels\['q1'\]\['d1'\]: expected an integer, got 1.0"),
        ({"q1": {"d1": "1"}}, "got '1'"),
    ],
)
def test_malformed_qrels_raise(qrels, named):
    with pytest.raises(InputError, match=named):
        retrieval_measures([Example("q", [Passage("text", id="d1")], id="q1")], ["RR"], qrels=qrels)


def test_by_answers():
    result = retrieval_measures(
        [ranked(None, None, None, answers=(False, True, True)), ranked(None, None, answers=(False, False))],
        ["R@2", "Success@2"],
        relevance="answer",
    )
    assert result.per_question == {"R@2": [0.5, 0.0], "Success@2": [1.0, 0.0]}


def test_questions_without_flags_are_left_out_and_counted():
    result = retrieval_measures([ranked(None, None), ranked(True, None)], ["RR"])
    assert (result.left_out, result.indices, result.per_question) == (1, [1], {"RR": [1.0]})
    empty = retrieval_measures([ranked(None)], ["RR"])
    assert empty.means == {} and empty.to_dict()["questions"] == 0


def test_bad_input(monkeypatch):
    with pytest.raises(InputError, match=r"measures: expected names of ir-measures.*got 'nDGC@10'"):
        retrieval_measures([ranked(True)], ["nDGC@10"])
    with pytest.raises(InputError, match="relevance: expected one of gold, answer"):
        retrieval_measures([ranked(True)], relevance="golden")
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MissingExtraError, match="the extra measures of fastreader"):
        retrieval_measures([ranked(True)])
