"""The questions with altered passages that studies/conflicts.py makes."""

import random
import re

import pytest
from lib import counterfactuals as made_up

from fastreader import Example, Passage


def examples(count=12):
    found = []
    for i in range(count):
        name = f"Ann{chr(97 + i)} Lee{chr(97 + i)}"
        texts = [f"It was {name} who wrote book {i}. {name} rested.", f"In 19{10 + i} she was {name}."]
        texts += [f"Nothing {i}{p}." for p in range(6)]
        found.append(Example(f"who wrote book {i}", [Passage(t, f"T{p}") for p, t in enumerate(texts)], [name]))
        texts = [f"Book {i} is of 4 May 19{10 + i}.", *(f"Nothing {i}{p}." for p in range(6))]
        found.append(Example(f"when was book {i}", [Passage(t) for t in texts], [f"4 May 19{10 + i}"]))
        texts = [f"Book {i} has {100 + i} pages.", *(f"Nothing {i}{p}." for p in range(6))]
        found.append(Example(f"how many pages has book {i}", [Passage(t) for t in texts], [f"{100 + i} pages"]))
    return found


@pytest.fixture(scope="module")
def made():
    return made_up.made_of(examples())


def test_all_kinds_are_made_and_come_in_turn(made):
    assert {item.kind for item in made[:5]} == set(made_up.KINDS) == {item.kind for item in made}
    assert len({item.id for item in made}) == len(made) > 40
    assert [item.id for item in made_up.made_of(examples())] == [item.id for item in made]
    assert {item.supporting for item in made} == {1, 2, 3, 4} and {len(item.altered) for item in made} == {1, 2}


def test_only_the_altered_passages_differ(made):
    for item in made:
        right = item.answers[0]
        differ = [i for i, (a, b) in enumerate(zip(item.clean, item.changed, strict=True)) if a != b]
        assert differ == sorted(item.altered) and len(item.clean) == item.supporting + item.unrelated + len(differ)
        assert sum(made_up.states(passage, [right]) for passage in item.clean) == item.supporting + len(differ)
        for i, new in item.altered.items():
            changed = item.changed[i]
            if item.kind == "rewrite":
                assert changed is None
            elif item.kind == "negation":
                assert new == right and re.search(r"\b(not|never|no longer|false)\b", changed.text)
            else:
                assert made_up.states(changed, [new]) and not made_up.states(changed, [right]) and new in item.answers
        for passage in item.clean:
            assert item.mention or not made_up.states(passage, item.answers[1:])


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("1957", "year"),
        ("25 March 1957", "date"),
        ("12 seats", "number"),
        ("seven", "number"),
        ("Nile", "name of 1"),
        ("Charles, Prince of Wales", "name of 3"),
        ("hit points", "phrase"),
    ],
)
def test_forms(answer, form):
    assert made_up.form(answer) == form


def test_other_numbers_and_dates_keep_their_form():
    rng = random.Random(0)
    assert re.fullmatch(r"[1-9]\d\d episodes", made_up.other_number("291 episodes", rng))
    assert made_up.form(made_up.other_number("seven", rng)) == "number"
    assert re.fullmatch(rf"({made_up.MONTHS}) \d\d?, 19\d\d", made_up.other_date("May 8, 1999", rng))


def test_snippets_keep_the_sentence_of_the_answer():
    passage = Passage("One is old. " + "word " * 50 + "end. The Nile is long. Cats sleep.", "T")
    assert made_up.cut(passage, "Nile", 1) == Passage("The Nile is long.", "T")
    assert len(made_up.cut(passage, "Nile").text.split()) <= made_up.WORDS


def test_whole_words():
    assert not made_up.whole("Nil").search("Nile")
    assert made_up.swapped(Passage("Nil and Nile", "Nil"), "Nil", r"\1") == Passage(r"\1 and Nile", r"\1")
