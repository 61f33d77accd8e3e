"""Parsing replies: candidates in all forms seen, short answers, labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.statistics.measures.answers import normalise
from fastreader.sure.replies import parse_candidates, parse_label, short_answer, without_done


@pytest.mark.parametrize(
    ("reply", "candidates", "form"),
    [
        ("(a) Paris, (b) Lyon", ["Paris", "Lyon"], "letters"),
        ("(a) Paris (b) Lyon.", ["Paris", "Lyon"], "letters"),
        ("(A) Paris; (B) Lyon", ["Paris", "Lyon"], "letters"),
        ("The candidates are (a) Paris and (b) Lyon", ["Paris", "Lyon"], "letters"),
        ("(a) Paris\n(b) Lyon\n\nBoth are cities.", ["Paris", "Lyon"], "letters"),
        ("(a)\nParis\n(b)\nLyon", ["Paris", "Lyon"], "letters"),
        ("Paris, (b) Lyon", ["Paris", "Lyon"], "letters"),
        ("(a) Paris, (b) Lyon [DONE]", ["Paris", "Lyon"], "letters"),
        ("[DONE] (a) Paris, (b) Lyon", ["Paris", "Lyon"], "letters"),
        ('(a) "Paris", (b) **Lyon**', ["Paris", "Lyon"], "letters"),
        ("(a) Person(s) of note, (b) Lyon", ["Person(s) of note", "Lyon"], "letters"),
        ("(a) Paris, (b) Lyon, (a) Nice", ["Paris", "Lyon"], "letters"),
        ("(a) Paris, (c) Lyon", ["Paris", "Lyon"], "letters"),
        ("(a) Vitamin (C), (b) iron", ["Vitamin (C)", "iron"], "letters"),
        ("(a) vitamin (c), (b) iron", ["vitamin (c)", "iron"], "letters"),
        ("(a) Elizabeth (I), (b) Mary (I)", ["Elizabeth (I)", "Mary (I)"], "letters"),
        ("(A) hepatitis (b), (B) hepatitis (a)", ["hepatitis (b)", "hepatitis (a)"], "letters"),
        ("Paris, (b) Lyon (a) Rome", ["Paris", "Lyon"], "letters"),
        ("(A) Paris, (b) Lyon", ["Paris", "Lyon"], "letters"),
        ("(a) hepatitis (B), (b) hepatitis (C)", ["hepatitis (B)", "hepatitis (C)"], "letters"),
        ("(a) Hepatitis A, (b) Hepatitis (C)", ["Hepatitis A", "Hepatitis (C)"], "letters"),
        ("(a) Section (B) of it, (b) Section (C) of it", ["Section (B) of it", "Section (C) of it"], "letters"),
        ("(A) x, (B) vitamin (c)", ["x", "vitamin (c)"], "letters"),
        ("(a) Paris (B) and more", ["Paris (B) and more"], "letters"),
        ("(a) Paris, (c) Lyon. Why: (a) is big, (b) small", ["Paris", "Lyon. Why"], "letters"),
        ("答案(a)巴黎, (b)里昂", ["巴黎", "里昂"], "letters"),
        ("(c) Paris", ["(c) Paris"], "whole"),
        ("a) Paris\nb) Lyon", ["Paris", "Lyon"], "list"),
        ("1. Paris\n2. Lyon", ["Paris", "Lyon"], "list"),
        ("- Paris\n- Lyon", ["Paris", "Lyon"], "list"),
        ("a) Paris, b) Lyon", ["Paris", "Lyon"], "list"),
        ("The answers: a) Paris b) Lyon", ["Paris", "Lyon"], "list"),
        ("a. Paris, b. Lyon", ["Paris", "Lyon"], "list"),
        ("A: Paris and B: Lyon", ["Paris", "Lyon"], "list"),
        ("1. Paris (France), 2. Lyon", ["Paris (France)", "Lyon"], "list"),
        ("1. Paris 2. Lyon 1. Nice", ["Paris", "Lyon"], "list"),
        ("(1) Paris (2) Lyon", ["Paris", "Lyon"], "list"),
        ("1) Paris, France, and 2) Lyon", ["Paris, France", "Lyon"], "list"),
        ("1. Paris\nin France\n2. Lyon\n\nBoth are cities.", ["Paris", "Lyon"], "list"),
        ("a) Paris, b)", ["Paris"], "list"),
        ("Plan A: wait, Plan B: go", ["Plan A: wait", "Plan B: go"], "commas"),
        ("A. B. Yehoshua, Amos Oz", ["A. B. Yehoshua", "Amos Oz"], "commas"),
        ("J. R. R. Tolkien", ["J. R. R. Tolkien"], "whole"),
        ("The answer is Paris, (b) Lyon", ["Paris", "Lyon"], "letters"),
        ("The two answers are: Paris, Lyon", ["Paris", "Lyon"], "commas"),
        ("Answer: Paris", ["Paris"], "whole"),
        ("The answer is:\n\nParis", ["Paris"], "whole"),
        ("The answer to this question is: Paris", ["Paris"], "whole"),
        ("The answer to your question is:\n\nParis, Lyon\n\nBoth are cities.", ["Paris", "Lyon"], "commas"),
        ("The answer to this question is:", [], "none"),
        ("The capital of France is:\n\nParis, in the north.\n\nIt is large.", ["Paris", "in the north"], "commas"),
        ("The capital of France:", ["The capital of France"], "whole"),
        ("The Answers, Nas", ["The Answers", "Nas"], "commas"),
        ("(a) II, (b) III", ["II", "III"], "letters"),
        ("(a) YY, (b) xx", ["YY", "xx"], "letters"),
        ("(a) XX, (b) XIX", ["XX", "XIX"], "letters"),
        ("Paris, Lyon", ["Paris", "Lyon"], "commas"),
        ("Paris\nLyon", ["Paris", "Lyon"], "commas"),
        ("Paris", ["Paris"], "whole"),
        ("Paris. [DONE]", ["Paris"], "whole"),
        ("one, two, three, four, five", ["one, two, three, four, five"], "whole"),
        ("", [], "none"),
        (" .,\n ", [], "none"),
        ("[DONE]", [], "none"),
        ("(a) xx, (b) yy", [], "none"),
    ],
)
def test_candidates_of_a_reply(reply, candidates, form):
    found = parse_candidates(reply, 2)
    assert (found.candidates, found.form) == (candidates, form)
    assert found.reply == reply


@pytest.mark.parametrize(
    ("reply", "candidates", "note"),
    [
        ("(a) Paris, (b) ", ["Paris"], "an empty candidate was left out"),
        ("(a) The Nile, (b) Nile!", ["The Nile"], "'Nile!' appears twice and counts once"),
        ("(a) xx, (b) Lyon", ["Lyon"], "'xx' only repeats the answer form and was left out"),
        ("(a) one, (b) two, (c) three", ["one", "two"], "'three' is beyond the 2 asked for and was left out"),
        ("(a) one two three four, (b) five", ["one two", "five"], "a candidate of 4 words was cut to 2"),
        ("(a) one two three, (b) one two four", ["one two"], "'one two' appears twice and counts once"),
        ("The answer is Paris, (b) Lyon", ["Paris", "Lyon"], None),
        ("Paris", ["Paris"], "found 1 of the 2 candidates asked for"),
        ("", [], "found 0 of the 2 candidates asked for"),
    ],
)
def test_pieces_left_out_or_cut_are_noted(reply, candidates, note):
    found = parse_candidates(reply, 2, longest=2)
    assert found.candidates == candidates
    assert note in found.notes if note else not found.notes


def test_a_clean_reply_leaves_no_note():
    assert parse_candidates("(a) Paris, (b) Lyon").notes == []


def test_articles_are_candidates_too():
    assert parse_candidates("(a) The, (b) A").candidates == ["The", "A"]


def test_more_than_two():
    assert parse_candidates("(a) w (b) x (c) y (d) z", 4).candidates == ["w", "x", "y", "z"]


@given(st.text(alphabet="()abcxyz .,\n[DONE]-1\"'", max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_any_reply_gives_distinct_candidates_within_bounds(reply, k, longest):
    found = parse_candidates(reply, k, longest=longest)
    assert len(found.candidates) <= k
    assert all(c.strip() and len(c.split()) <= longest and "[DONE]" not in c for c in found.candidates)
    assert (found.form == "none") == (not found.candidates)
    assert (len(found.candidates) == k) or any("asked for" in note for note in found.notes)
    keys = [normalise(c) or c.casefold() for c in found.candidates]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Paris", "Paris"),
        ("\n\n Paris.\nBecause", "Paris"),
        ("Answer: Paris", "Paris"),
        ("Answer:\nParis", "Paris"),
        ("The answer is: Paris", "Paris"),
        ("The answer to this question is:\n\nParis.", "Paris"),
        ("The answer is:", ""),
        ('"Paris"', "Paris"),
        ("", ""),
        ("...", ""),
    ],
)
def test_short_answers(reply, answer):
    assert short_answer(reply) == answer
    assert parse_candidates(reply, 1).candidates == ([answer] if answer else [])  # methods are compared on one footing


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("True", 0),
        ("false.", 1),
        ("It is not false but true", 1),
        ("Untrue", None),
        ("", None),
        ("I cannot say", None),
    ],
)
def test_labels_of_validity(reply, label):
    assert parse_label(reply, ["True", "False"]) == label


@pytest.mark.parametrize(
    ("reply", "label"), [("Passage 2", 1), ("passage  1, because Passage 2", 0), ("Passage 12", None)]
)
def test_labels_of_ranking(reply, label):
    assert parse_label(reply, ["Passage 1", "Passage 2"]) == label


def test_done_is_cut_off_with_what_follows():
    assert without_done("A passage.\n[done] And more") == "A passage."
