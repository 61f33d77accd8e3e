"""ROUGE-L, short-answer recall, citations and supporting passages: published and hand-worked examples."""

import pytest

from fastreader.errors import InputError
from fastreader.statistics.measures.answers import contained_words, rouge_l, short_answer_recall
from fastreader.statistics.measures.citations import (
    Support,
    citation_false_negatives,
    citation_false_positives,
    citation_precision,
    citation_recall,
    cited,
    contains,
    sentences,
    support,
    without_citations,
)

# The first two are Lin's own examples (2004, section 3); the values of all come from rouge-score 0.1.2.
ROUGE_L = [
    ("police kill the gunman", "police killed the gunman", 0.75),
    ("the gunman kill police", "police killed the gunman", 0.5),
    ("The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.", 0.5882352941176471),
    ("testing one two", "testing", 0.5),
    ("It's 3.5 km, in total", "3.5 km", 0.6),
    ("a b c d e", "e d c b a", 0.2),
    ("", "x", 0.0),
]


@pytest.mark.parametrize(("answer", "right", "value"), ROUGE_L)
def test_rouge_l(answer, right, value):
    assert rouge_l(answer, [right]) == pytest.approx(value, abs=1e-12)
    assert rouge_l(answer, ["zzz", right]) == pytest.approx(value, abs=1e-12)  # the best over the right answers


def test_rouge_l_of_other_letters_and_nothing():
    assert rouge_l("Москва", ["москва"]) == 1.0
    assert rouge_l("Cairo", []) == 0.0


def test_short_answer_recall():
    """One of two required answers is there, by its second alias."""
    long = "The series began in 1966 with William Shatner as the captain."
    assert short_answer_recall(long, [["Patrick Stewart"], ["Shatner", "William Shatner"]]) == 0.5
    assert short_answer_recall(long, [["1966"], ["the William  Shatner!"]]) == 1.0
    with pytest.raises(InputError, match="right: expected at least one short answer"):
        short_answer_recall(long, [])


@pytest.mark.parametrize(
    ("answer", "passages", "indices", "text"),
    [
        ("Cairo [2]", 3, [1], "Cairo"),
        ("Cairo [1, 3] or Giza [3][1].", 3, [0, 2], "Cairo or Giza."),
        ("Cairo [4] [0]", 3, [], "Cairo"),
        ("Cairo [a] (2)", 3, [], "Cairo [a] (2)"),
        ("[2;1]", 2, [1, 0], ""),
    ],
)
def test_citations_are_read(answer, passages, indices, text):
    assert cited(answer, passages) == indices and without_citations(answer) == text


def test_citation_precision_and_recall():
    passages = ["Cairo is in Egypt.", "Giza has pyramids.", "The capital, Cairo, is old."]
    assert citation_precision("Cairo [1, 2]", passages) == 0.5 and citation_recall("Cairo [1, 2]", passages) == 1.0
    assert citation_precision("Cairo [2]", passages) == citation_recall("Cairo [2]", passages) == 0.0
    assert citation_precision("Cairo", passages) is None and citation_recall("Cairo", passages) == 0.0
    seen = []
    citation_recall("Cairo [3][1]", passages, lambda passage, answer: seen.append((passage, answer)) or 1.0)
    assert seen == [("Cairo is in Egypt.\nThe capital, Cairo, is old.", "Cairo")]  # joined as the prompt has them
    assert contains("The Nile.", "the nile") == 1.0 and contains("The Nile.", "the") == 0.0


def test_support_of_two_gold_passages():
    """Of the gold passages 0 and 3, one was chosen, with one other."""
    assert support([0, 1], [0, 3]) == Support(0.0, 0.5, 0.5, 0.5)
    assert support([3, 0, 3], [0, 3]) == Support(1.0, 1.0, 1.0, 1.0)
    assert support([0], [0, 3]) == Support(0.0, 1.0, 0.5, pytest.approx(2 / 3))
    assert support([], [0]) == Support(0.0, 0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="gold: expected at least one gold passage"):
        support([0], [])


@pytest.mark.parametrize(
    ("answer", "right", "value"),
    [
        ("It was the Nile.", ["nile"], 1.0),
        ("The Nile-like river", ["Nile"], 0.0),  # SQuAD's form joins them
        ("in 1901", ["1"], 0.0),
        ("a river, the blue one", ["the Blue"], 1.0),
        ("Ann Arbor", ["Arbor Ann"], 0.0),
        ("", ["Nile"], 0.0),
        ("the", ["the"], 0.0),
        ("Nile", [], 0.0),
    ],
)
def test_contained_words(answer, right, value):
    assert contained_words(answer, right) == value
    assert contained_words(answer, [*right, "zzz"]) == value


@pytest.mark.parametrize(
    ("answer", "split"),
    [
        ("", []),
        ("[1]", []),
        ("Cairo [2]", ["Cairo [2]"]),
        ("Cairo [2]. It is 3.5 km wide! [1] [3] Why", ["Cairo [2].", "It is 3.5 km wide! [1] [3]", "Why"]),
        ("One.\n\nTwo?", ["One.", "Two?"]),
    ],
)
def test_sentences(answer, split):
    assert sentences(answer) == split


PASSAGES = ["The Nile is long.", "Cairo is large.", "Cairo is large. The Nile is long."]


@pytest.mark.parametrize(
    ("answer", "positives", "negatives"),
    [
        ("The Nile is long [1][3]. Cairo is large [2, 3].", 0, 0),
        ("The Nile is long [2]. Cairo is large [2, 3].", 1 / 2, 1 / 2),  # the first cites wrongly, and lacks two
        ("The Nile is long [1]. Cairo is large.", 0, 1),
        ("It rains [1, 2]. It snows. Cairo is large [2][3]. The Nile is long [1, 3, 2].", 1 / 2, 0),
        ("", None, None),
    ],
)
def test_citation_errors_of_sentences(answer, positives, negatives):
    assert citation_false_positives(answer, PASSAGES) == positives
    assert citation_false_negatives(answer, PASSAGES) == negatives


@pytest.mark.parametrize(("count", "pairs"), [(citation_false_positives, 2), (citation_false_negatives, 1)])
def test_citation_errors_ask_about_every_pair_whatever_the_first_replies(count, pairs):
    asked = []
    count("It rains [1, 2].", PASSAGES, lambda *pair: asked.append(pair) or float(count is citation_false_negatives))
    assert [text for _, text in asked] == ["It rains."] * pairs
