"""The counterfactuals that studies/conflicts.py makes."""

import importlib.util
import re
from pathlib import Path

import pytest

from fastreader import Example, Passage

STUDIES = Path(__file__).parents[3] / "studies"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("conflicts_study", STUDIES / "conflicts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def examples(count=9):
    made = []
    for i in range(count):
        name = f"Ann{i} Lee{i}"
        texts = [f"{name} wrote book {i}. {name} rested.", f"It was {name}.", *(f"Nothing {i}{p}." for p in range(4))]
        made.append(Example(f"who wrote book {i}", [Passage(t, f"T{p}") for p, t in enumerate(texts)], [name]))
    return made


def test_one_supporting_passage_is_changed(study):
    made = list(study.counterfactuals(examples()))
    assert len(made) == 9 and [item["id"] for item in made] == [str(i) for i in range(9)]
    assert {item["odd"] for item in made} == {0, 1}
    for item in made:
        assert item["supporting"] == 2 and len(item["clean"]) == len(item["changed"]) == 5
        differ = [p for p in range(5) if item["clean"][p] != item["changed"][p]]
        assert differ == [item["odd"]] and item["right"] != item["replaced"]
        old, new = item["clean"][differ[0]].text, item["changed"][differ[0]].text
        assert new == old.replace(item["right"], item["replaced"]) and item["right"] not in new
    assert made == list(study.counterfactuals(examples()))


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("1957", "year"),
        ("25 March 1957", "date"),
        ("12 seats", "number"),
        ("Nile", "name of 1"),
        ("Charles, Prince of Wales", "name of 3"),
        ("hit points", "phrase"),
    ],
)
def test_forms(study, answer, form):
    assert study.form(answer) == form


def test_whole_words(study):
    assert isinstance(study.whole("a.b"), re.Pattern) and not study.whole("Nil").search("Nile")
    assert study.swapped(Passage("Nil and Nile", "Nil"), "Nil", r"\1") == Passage(r"\1 and Nile", r"\1")
