"""Measures of what the passages do to a reader: the order alone, and passages that distract."""

import pytest

import fastreader as fr
from fastreader.noise import distracting_effects
from fastreader.study.measures.case import Case
from fastreader.study.measures.registry import measure

PASSAGES = [
    fr.Passage("alpha says one."),
    fr.Passage("bravo says two.", is_gold=True),
    fr.Passage("carol says three."),
]
CASES = [
    Case(fr.Example("who?", PASSAGES, id="a"), "ab", {"order": [2, 1]}),
    Case(fr.Example("who?", PASSAGES, id="a"), "", {"order": [1]}),
    Case(fr.Example("who?", [], id="b"), "ab", {"order": []}),
]


def test_they_are_those_of_the_direct_calls(tiny_reader):
    found = {name: measure(f"{name}:x", lambda model: tiny_reader)(CASES) for name in ("order_range", "order_changed")}
    scores = fr.sensitivity(tiny_reader, "who?", PASSAGES, ["ab"])
    assert found["order_range"] == [pytest.approx(float(scores.ranges[0])), None, None] and scores.ranges[0] > 0
    changed = fr.sensitivity(tiny_reader, "who?", PASSAGES).changed
    assert found["order_changed"] == [changed, changed, None]
    effects = distracting_effects(tiny_reader, "who?", [PASSAGES[2]])
    long = Case(fr.Example("who?", [fr.Passage("alpha says one. " * 500)] * 2, id="c"), "ab", {"order": [0, 1]})
    for name in ("order_range", "order_changed", "distraction"):
        assert measure(f"{name}:x", lambda model: tiny_reader)([long]) == [None]
    assert measure("distraction:x", lambda model: tiny_reader)(CASES) == [pytest.approx(effects[0]), None, None]
