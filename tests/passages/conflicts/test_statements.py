"""Statements in passages: forms of words, numbers and dates, aliases, negation, candidates inside longer ones."""

import numpy as np
import pytest

import fastreader as fr
from fastreader.passages.conflicts.forms import key_of
from fastreader.passages.conflicts.statements import TITLE, instead, negated, statements
from fastreader.passages.conflicts.stems import stem

LONG = "which has been known for a very long time to everybody who has ever lived in the city or near it, " * 3


def stated(candidate, text, *, others=(), aliases=None, title=""):
    found = statements("", [fr.Passage(text, title)], [candidate, *others], aliases or {})
    return float(found.stated[0, 0])


@pytest.mark.parametrize(
    ("candidate", "text", "wanted"),
    [
        ("東京", "日本の首都は東京です。", True),
        ("京都", "日本の首都は東京です。", False),
        ("กรุงเทพ", "เมืองหลวงคือกรุงเทพครับ", True),
        ("서울", "수도는 서울이다.", True),
        ("NASA", "それはNASAの計画。", True),
        ("NASA", "それはNASAXの計画。", False),
        ("1908", "在1908年。", True),
        ("908", "在1908年。", False),
        ("ភ្នំពេញ", "រាជធានីគឺភ្នំពេញនៅ", True),
        ("Nile", "Niles", False),
        ("nile", "A NILE and a Nilegau.", True),
        ("Nil", "A NILE and a Nilegau.", False),
        ("Нил", "Река Нил.", True),
        ("Нил", "Нила", False),
        ("C++", "in C++11", False),
        ("C++", "in C++.", True),
        ("Wilhelm Röntgen", "by WILHELM RO\u0308NTGEN in 1901", True),
        ("Rontgen", "by Wilhelm Röntgen", True),
        ("Charles Darwin", "It is Charles Darwin's book.", True),
        ("Jean-Paul Sartre", "by jean paul sartre", True),
        ("J. R. R. Tolkien", "written by J.R.R. Tolkien", True),
        ("The Lord of the Rings", "in Lord of the Rings", True),
        ("Simon & Garfunkel", "sung by Simon and Garfunkel", True),
        ("O'Brien", "said O’Brien", True),
        ("US", "told us so. The end", False),
        ("US", "of the U.S. Senate", True),
        ("US", "in the us senate", True),  # no capital in the text
        ("WHO", "the man who came to Rome", False),
        ("Bread. Rome", "We like bread. Rome is old.", False),
        ("St. Louis", "in St. Louis", True),
        ("Tulsa, Oklahoma", "born in Tulsa Oklahoma", True),
        ("1,000", "all 1000 men", True),
        ("one thousand", "all 1,000 men", True),
        ("$5,000,000", "it cost $5 million", True),
        ("$5 million", "it cost 5 million dollars", True),
        ("$5 million", "it cost $7 million, for 5 million people", False),
        ("2017", "$4.78 in 2017 dollars", True),
        ("5%", "five per cent of all", True),
        ("21st", "the twenty-first century", True),
        ("thirteenth", "the 13th", True),
        ("4 July 1776", "signed on 07/04/1776", True),
        ("13 April 1776", "signed on 13/4/1776", True),
        ("13 May 1776", "signed on 13/4/1776", False),
        ("3", "three quarters, 3/4", True),
        ("1,000", "all 1,000,000 men", False),
        ("5", "it is 2.5 or 5,000", False),
        ("2.50", "it is 2.5", True),
        ("twenty-one", "there are 21", True),
        ("100", "a hundred days", True),
        ("342", "three hundred and forty-two", True),
        ("1.5 million", "1,500,000 people", True),
        ("two million", "2 million people", True),
        ("$1,000", "for $1000", True),
        ("$1,000", "for 1000", False),
        ("7", "seven seats", True),
        ("1", "one of them, and no one", False),
        ("1", "won by one goal", True),
        ("first", "the 1st one", True),
        ("4 July 1776", "on July 4, 1776, in", True),
        ("July 4th, 1776", "on 1776-07-04", True),
        ("1776-07-04", "the 4th of July 1776", True),
        ("4 July 1776", "in 1776", False),
        ("4 July 1776", "on 4 July 1777", False),
        ("4 July 1776", "on 5 July 1776", False),
        ("July 1776", "on 4 July 1776", True),
        ("4 July", "on July 4, 1776", True),
        ("July 4, 1776", "on the Fourth of July", False),
        ("Thursday, July 4, 1776", "July 4 1776", True),
        ("1776", "on July 4, 1776", True),
        ("...", "Well... no", False),
    ],
)
def test_forms_of_a_statement(candidate, text, wanted):
    assert bool(stated(candidate, text)) is wanted


@pytest.mark.parametrize(
    ("a", "b"),
    [("4 July 1776", "1776-07-04"), ("one thousand", "1,000"), ("Jean-Paul", "jean paul"), ("the Nile", "Nile!")],
)
def test_keys_of_the_same_answer_are_equal(a, b):
    assert key_of(a) == key_of(b) and key_of(a) != key_of("Seine")


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("The Nile is not in Peru.", "Nile", True),
        ("The Nile is not in Peru.", "Peru", True),
        ("It isn't Paris.", "Paris", True),
        ("It was not Paris but London.", "London", False),
        ("Charles Darwin, not Alfred Wallace, wrote it.", "Charles Darwin", False),
        ("Charles Darwin, not Alfred Wallace, wrote it.", "Alfred Wallace", True),
        ("London rather than Paris was chosen.", "London", False),
        ("London rather than Paris was chosen.", "Paris", True),
        ("Paris is no longer the capital.", "Paris", True),
        ("It is false that Paris is the capital.", "Paris", True),
        ("He denied that Paris was burning.", "Paris", True),
        ("Paris was never the capital; London was.", "London", False),
        ("It is not only Paris that shines.", "Paris", False),
        ("It was not abolished until 1920.", "1920", False),
        ("They did not come. Paris won.", "Paris", False),
        ("Paris won. They did not come.", "Paris", False),
        ("A river of note is the Nile.", "Nile", False),
        ("It is not true that in 1957, Paris won.", "Paris", True),
        ("It is false that in 1957, Paris won. Rome did.", "Rome", False),
        ('"It Ain\'t Me" is a song by Kygo.', "Kygo", False),
        ("In Billy Don't Be a Hero sings Paper Lace.", "Paper Lace", False),
        ("Don't trust Paris.", "Paris", True),
        ("They have not met since 1981.", "1981", False),
        ("Wilde was not well when he died in Paris.", "Paris", False),
        ("Wilde was not rich and died in Paris.", "Paris", False),
        ("Wilde died in Paris and never saw his sons again.", "Paris", False),
        ("Wilde did not die in Lyon and Paris.", "Paris", True),
        ("Without a coach the team from Paris won.", "Paris", False),
        ("It was, unlike the old city of Paris, new.", "Paris", True),
        ("They did not rest. Rather than rest, Paris won.", "Paris", False),
        ("Not everyone knows that it is Paris.", "Paris", False),
    ],
)
def test_negation(text, name, wanted):
    start = text.index(name)
    assert negated(text, start, start + len(name)) is wanted


def test_a_candidate_is_denied_if_every_place_negates_it():
    texts = ["It is not Paris. Not Paris.", "It is not Paris. Yes, Paris it is.", "Rome."]
    found = statements("", [fr.Passage(text) for text in texts], ["Paris", "Rome"], {})
    assert found.denied.tolist() == [[True, False], [False, False], [False, False]]
    assert found.stated.tolist() == [[0, 0], [1, 0], [0, 1]]


def test_a_candidate_inside_a_longer_one_is_not_stated():
    assert not stated("York", "in New York", others=["New York"])
    assert stated("York", "in New York") and stated("York", "from York to New York", others=["New York"])
    assert not stated("1776", "on July 4, 1776", others=["4 July 1776"])
    assert not stated("4 July", "on July 4, 1776", others=["4 July 1776"])
    assert not stated("York", "in New York", others=["NYC"], aliases={"NYC": ["New York"]})


def test_aliases_state_their_candidate():
    assert stated("Netherlands", "in Holland", aliases={"Netherlands": ["Holland", "Holland"]})
    assert not stated("Netherlands", "in Holland")


def test_a_title_states_if_the_text_states_nothing():
    assert stated("Nile", "It is long.", title="The Nile") == TITLE
    assert stated("Nile", "The Seine is long.", title="The Nile", others=["Seine"]) == 0
    assert stated("Nile", "The Nile is long.", title="The Nile") == 1


def test_share_of_the_questions_words():
    texts = [fr.Passage("The river flows to Cairo."), fr.Passage("Cats sleep.", "Rivers of Cairo"), fr.Passage("Cats.")]
    found = statements("Which river is in Cairo?", texts, ["a", "b"], {})
    assert found.about.tolist() == [1, 1, 0]
    assert statements("Which is it?", texts, ["a", "b"], {}).about.tolist() == [0, 0, 0]


def test_the_claim_is_replaced_in_the_text_and_the_title():
    def replaced(passage, name, others):
        found = statements("", [passage], [name], {})
        return instead(passage, (found.places[0][0], found.in_title[0][0]), others)

    (changed,) = replaced(fr.Passage("A NILE and a Nilegau.", "Nile"), "Nile", [r"Rhine\1"])
    assert changed.text == r"A Rhine\1 and a Nilegau." and changed.title == r"Rhine\1"
    (cut,) = replaced(fr.Passage(f"The Nile, {LONG}end."), "Nile", ["Rhine"])
    assert cut.text.startswith("The Rhine, which") and 170 < len(cut.text) < 200 and not cut.text.endswith("end.")
    one, two = replaced(fr.Passage("On July 4, 1776, and 1776-07-04."), "4 July 1776", ["May 1", "x"])
    assert (one.text, two.text) == ("On May 1, and May 1.", "On x, and x.")


def test_shapes_without_candidates():
    found = statements("Who?", [fr.Passage("Cats.")], [], {})
    assert found.stated.shape == (1, 0) and np.isfinite(found.about).all()


@pytest.mark.parametrize(
    "forms",
    [
        "sink sinks sank sunk sinking",
        "city cities",
        "win wins won winner winning",
        "write wrote written writer writing",
        "die died dies",
        "walk walked walking",
        "see saw seen seeing",
        "run ran running runner",
        "dance danced dancing dancer",
        "country countries",
        "play played player playing",
        "agree agreed",
        "begin began begun beginning",
        "create created creation creator",
        "man men",
        "bus buses",
        "1912",
    ],
)
def test_forms_of_one_word_have_one_stem(forms):
    assert len(set(map(stem, forms.split()))) == 1


@pytest.mark.parametrize("words", ["need see", "king kin", "bus bush", "sing sin", "series sere", "1912 1913"])
def test_other_words_have_another_stem(words):
    one, two = map(stem, words.split())
    assert one != two


def test_verbs_of_every_topic_do_not_count():
    found = statements("Who made and took it?", [fr.Passage("They take and make it.")], ["a", "b"], {})
    assert found.about.tolist() == [0]
    found = statements("When did the Titanic sink?", [fr.Passage("It sank in 1912.")], ["a", "b"], {})
    assert found.about.tolist() == [0.5]
