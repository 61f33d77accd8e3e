"""fr.fuse: reciprocal rank fusion."""

import pytest

import fastreader as fr
from fastreader.errors import InputError


def texts(passages):
    return [passage.text for passage in passages]


def test_scores_by_hand():
    fused = fr.fuse([["a", "b", "c"], ["c", "a"], ["d"]])
    assert texts(fused) == ["a", "c", "d", "b"]
    assert [p.score for p in fused] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 61, 1 / 62])
    weighted = fr.fuse([["a", "b"], ["b", "a"]], k=1, weights=[1, 3], top_n=1)
    assert texts(weighted) == ["b"] and weighted[0].score == pytest.approx(1 / 3 + 3 / 2)


def test_ids_decide_before_texts():
    fused = fr.fuse([[fr.Passage("x", id="1"), fr.Passage("x", id="2")], [fr.Passage("y", id="2", title="t")]])
    assert [(p.id, p.text) for p in fused] == [("2", "x"), ("1", "x")]


def test_a_repeated_passage_counts_its_first_place():
    fused = fr.fuse([["a", "a", "b"]])
    assert [p.score for p in fused] == pytest.approx([1 / 61, 1 / 62])


def test_rankings_and_documents_of_libraries(tiny_reader):
    ranked = fr.rerank(tiny_reader, "Which?", ["a", "b"])
    fused = fr.fuse([ranked, [{"contents": "b", "meta": 1}]])
    assert texts(fused) == ["b", "a"]


def test_empty_lists_and_bad_input():
    assert fr.fuse([[], []]) == [] and texts(fr.fuse([[], ["a"]])) == ["a"]
    for arguments, words in (
        (([],), "rankings: expected at least one list"),
        (([["a"], [1]],), r"rankings\[1\]\[0\]"),
    ):
        with pytest.raises(InputError, match=words):
            fr.fuse(*arguments)
    for options, words in (
        ({"k": 0}, "k: expected a finite number above 0"),
        ({"weights": [1, 2]}, "weights: expected one for each of 1 rankings"),
        ({"weights": [-1.0]}, r"weights\[0\]"),
        ({"top_n": 0}, "top_n"),
    ):
        with pytest.raises(InputError, match=words):
            fr.fuse([["a"]], **options)
