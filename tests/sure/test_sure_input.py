"""Invalid arguments of SuRe and its variants: every error names the argument and its value."""

from __future__ import annotations

import math

import pytest
from helpers.scripted import ScriptedReader
from sure_readers import script

from fastreader import Passage, sure
from fastreader.errors import InputError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use": "validity"}, "use: expected a list of texts, got 'validity'"),
        ({"use": None}, "use: .*got None"),
        ({"shots": "ab"}, r"shots: expected a list of groups of 2 values \(text, text\), got 'ab'"),
        ({"shots": ["ab", "cd"]}, r"shots\[0\]: expected 2 values \(text, text\), got 'ab'"),
        ({"shots": [("Who?",)]}, r"shots\[0\]: expected 2 values \(text, text\), got \('Who\?',\)"),
        ({"shots": 5}, "shots: expected .* got 5"),
        ({"template": {"true": "Yes"}}, "template: expected a SureTemplate .*, got {'true'"),
        ({"variant_template": "text"}, "variant_template: expected a VariantTemplate .*, got 'text'"),
        ({"temperature": math.inf}, "temperature: expected a finite number above 0, got inf"),
        ({"weight_temperature": 0}, "weight_temperature: expected a finite number above 0, got 0"),
        ({"seed": "a"}, "seed: expected an integer, got 'a'"),
        ({"encoder": 5}, "encoder: expected text or a function, got 5"),
        ({"settings": {"k": 3}}, "settings: expected a Settings or None, got {'k': 3}"),
        ({"passages": None}, "passages: expected a list, got None"),
        ({"answers": "the Nile"}, "answers: expected a list of texts, got 'the Nile'"),
    ],
)
def test_values_of_another_type_raise(options, message):
    asked = {"passages": ["A passage."], "method": "oracle", **options}
    with pytest.raises(InputError, match=message):
        sure.ask(ScriptedReader(**script()), "Which river?", **asked)


def test_shots_may_come_from_json():
    assert sure.Settings(shots=[["Who?", "She"]]).shots == (("Who?", "She"),)


@pytest.mark.parametrize("example", ["Which river?", {"question": "Which river?"}])
def test_answer_many_takes_examples(example):
    with pytest.raises(InputError, match=r"examples\[0\]: expected an Example, got"):
        list(sure.answer_many(ScriptedReader(**script()), [example]))


@pytest.mark.parametrize("score", [None, math.nan, math.inf])
def test_weights_by_scores_need_scores(score):
    passages = [Passage("One.", score=1.0), Passage("Two.", score=score)]
    message = rf"passages\[1\]\.score: expected a finite number for weights='retriever', got {score}"
    with pytest.raises(InputError, match=message):
        sure.ask(ScriptedReader(**script()), "Which river?", passages, method="rerank", weights="retriever")
