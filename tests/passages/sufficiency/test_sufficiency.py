"""sufficient against the model's own forward, one sequence at a time, and its model against plain arithmetic."""

import math

import numpy as np
import pytest
from helpers.support import one_by_one
from lib import sufficiency_answers
from sufficiency import chosen, fit

import fastreader as fr
from fastreader.errors import ContextOverflowError, InputError
from fastreader.passages.sufficiency.model import WEIGHTS, features, probability
from fastreader.reader.prompts.pieces import encode

QUESTION = "Which river flows through Cairo?"
PASSAGES = [fr.Passage("The Nile flows through Cairo.", "Nile"), fr.Passage("Cats sleep."), fr.Passage("A river.")]


def test_against_the_model_one_sequence_at_a_time(tiny_reader):
    found = fr.sufficient(tiny_reader, QUESTION, PASSAGES)
    pieces = encode(tiny_reader.encoder, fr.Template(), QUESTION, PASSAGES, [])
    contexts = [pieces.head + pieces.body(places) + pieces.question_lead for places in ([], [0], [1], [2])]
    pairs = [(context, pieces.question) for context in contexts]
    none, *alone = (float(v.sum()) for v in one_by_one(tiny_reader.local_model.model.original, pairs))
    assert found.gains == pytest.approx([value - none for value in alone], abs=2e-4)
    assert found.about == pytest.approx([2 / 3, 0, 1 / 3]) and found.best == int(found.gains.argmax())
    odds = WEIGHTS.constant + WEIGHTS.gain * max(found.gains) + WEIGHTS.about * 2 / 3
    assert found.probability == pytest.approx(1 / (1 + math.exp(-odds)))


def test_evidence_raises_the_probability():
    def at(gains, about):
        return float(probability(features(np.array(gains, float), np.array(about, float))))

    assert at([-5], [0]) < 0.2 < 0.8 < at([25], [1])
    assert at([5, 20], [0, 1]) == at([20, -50], [1, 0]) > at([20], [0.5]) > at([10], [0.5])
    assert at([1e6], [1]) == 1 and at([-1e6], [1]) == pytest.approx(0, abs=1e-300)


def test_an_example_brings_its_passages_and_the_result_is_saved(tiny_reader, tmp_path):
    found = fr.sufficient(tiny_reader, fr.Example(QUESTION, PASSAGES, id="q"))
    assert found.id == "q" and found.probability == fr.sufficient(tiny_reader, QUESTION, PASSAGES).probability
    found.save(tmp_path / "s.json")
    again = fr.Sufficiency.load(tmp_path / "s.json")
    assert again.to_dict() == found.to_dict() and repr(again) == repr(found)
    assert repr(found).startswith("Sufficiency(3 passages, probability 0.")


def test_nothing_is_generated_and_one_pass_is_made(tiny_reader, monkeypatch):
    calls = []
    score = type(tiny_reader).score
    monkeypatch.setattr(type(tiny_reader), "score", lambda *a, **k: calls.append(1) or score(*a, **k))
    monkeypatch.setattr(type(tiny_reader), "generate", lambda *a, **k: pytest.fail("generated"))
    found = fr.sufficient(tiny_reader, QUESTION, PASSAGES)
    assert len(calls) == 1 and found.stats.computed_tokens < found.stats.total_tokens


@pytest.mark.parametrize("question", ["?", "what is it", "首都は?"])
@pytest.mark.parametrize("texts", [["..."], ["Cats.", "Cats."], [f"Passage {i}" for i in range(20)]])
def test_ordinary_content(tiny_reader, question, texts):
    found = fr.sufficient(tiny_reader, question, texts)
    assert 0 <= found.probability <= 1 and len(found.gains) == len(texts) == len(found.about)
    assert np.isfinite(found.gains).all() and not found.note


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((QUESTION, []), "passages: expected at least one passage"),
        ((" ", PASSAGES), "question"),
        ((QUESTION, ["x", ""]), r"passages\[1\]"),
    ],
)
def test_rejects(tiny_reader, arguments, message):
    with pytest.raises(InputError, match=message):
        fr.sufficient(tiny_reader, *arguments)


def test_rejects_options(tiny_reader):
    with pytest.raises(InputError, match="template: expected the question after the passages"):
        fr.sufficient(tiny_reader, QUESTION, PASSAGES, template=fr.Template(question_first=True))
    with pytest.raises(InputError, match="on_overflow"):
        fr.sufficient(tiny_reader, QUESTION, PASSAGES, on_overflow="drop")
    with pytest.raises(ContextOverflowError, match=r"passages\[1\] is \d+ tokens too long"):
        fr.sufficient(tiny_reader, QUESTION, ["a", "b " * 3000])
    cut = fr.sufficient(tiny_reader, QUESTION, ["a", "b " * 3000], on_overflow="truncate")
    assert "1 passage was cut" in cut.note and cut.note in repr(cut)


def test_the_two_versions_of_a_question(tmp_path):
    gold = fr.Passage("The Nile.", score=9.0, is_gold=True)
    others = [fr.Passage("It is the Nile too.", score=8.0), *(fr.Passage(f"p{i}", score=7.0 - i) for i in range(3))]
    late = [fr.Passage(f"p{i}", score=9.0 - i) for i in range(4)]
    examples = [fr.Example("q", [*others, gold], ["Nile"]), fr.Example("r", [*late, gold], ["Nile"])]
    fr.save_examples(examples, tmp_path / "q.jsonl")
    found = chosen(tmp_path / "q.jsonl", 3, 9)
    texts = [[passage.text for passage in version.passages] for version in found[0]]
    assert texts == [["The Nile.", "It is the Nile too.", "p0"], ["p0", "p1", "p2"]]


def test_the_fit_is_that_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    rows = [
        {
            "question": i,
            **{
                name: {"gains": (rng.normal(4 * (name == "with"), 4, 3)).tolist(), "about": rng.random(3).tolist()}
                for name in ("with", "without")
            },
        }
        for i in range(80)
    ]
    found = fit(rows)
    values = [features(*(np.array(row[name][key]) for key in ("gains", "about"))) for row in rows
              for name in ("with", "without")]  # fmt: skip
    model = linear.LogisticRegression(C=1e9, fit_intercept=False, tol=1e-8).fit(values, [1, 0] * 80)
    assert list(found) == pytest.approx(model.coef_[0].tolist(), abs=2e-3)


def test_other_evidence_has_a_number_for_each_name(tiny_reader):
    row = sufficiency_answers.answer_evidence(tiny_reader, fr.Example(QUESTION, PASSAGES, ["Nile"]))
    values = {name: value(row) for name, value in sufficiency_answers.EVIDENCE.items()}
    assert all(math.isfinite(value) for value in values.values()) and row["right"] in (0, 1)
