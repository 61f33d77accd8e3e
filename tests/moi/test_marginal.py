"""marginal_answer: candidates and their mean probability."""

import numpy as np
import pytest
from helpers.support import one_by_one

import fastreader as fr
from fastreader.errors import InputError
from fastreader.moi import marginal_answer
from fastreader.reader.prompts.pieces import encode
from fastreader.scoring.marginal_answer import distinct
from fastreader.scoring.reading import reading_prompts

QUESTION = "Which river is in Cairo?"
PASSAGES = ["The Nile is in Cairo.", "The Seine is in Paris.", "Cats sleep a lot."]
CYCLES = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_mean_over_orderings_by_the_models_own_forward(tiny_reader):
    found = marginal_answer(tiny_reader, QUESTION, PASSAGES, max_new_tokens=4)
    prompts = reading_prompts(tiny_reader, QUESTION, [fr.Passage(p) for p in PASSAGES], CYCLES)
    texts = [r[0].text.strip() for r in tiny_reader.generate(prompts, max_new_tokens=4, stop=["\n"])]
    assert found.candidates == distinct(texts)[0] and found.written.sum() <= 3
    pieces = encode(tiny_reader.encoder, fr.Template(), QUESTION, [fr.Passage(p) for p in PASSAGES], found.candidates)
    mean = np.zeros(len(found.candidates))
    for prompt in prompts:
        logs = np.array(
            [
                v.sum()
                for v in one_by_one(tiny_reader.local_model.model.original, [(prompt, c) for c in pieces.candidates])
            ]
        )
        weight = np.exp(logs - logs.max())
        mean += weight / weight.sum() / 3
    assert found.probabilities == pytest.approx(mean, abs=1e-4)
    assert found.text == found.candidates[int(mean.argmax())] and found.confidence == pytest.approx(
        mean.max(), abs=1e-4
    )
    assert found.to_dict()["answer"] == found.text and found.text in repr(found)


def test_spellings_are_merged():
    assert distinct(["the Nile", "Nile!", " Nile!", "", "A Seine", "..."]) == (["Nile!", "A Seine"], [3, 1])
    assert distinct([]) == ([], [])


def test_without_an_answer(tiny_reader, monkeypatch):
    monkeypatch.setattr("fastreader.scoring.marginal_answer.distinct", lambda texts: ([], []))
    found = marginal_answer(tiny_reader, QUESTION, PASSAGES, max_new_tokens=2)
    assert (found.text, found.confidence, found.scores) == ("", 0.0, None) and found.to_dict()["scores"] is None


def test_a_session_reads_the_prompts_once(tiny_reader):
    prompts = reading_prompts(tiny_reader, QUESTION, [fr.Passage(p) for p in PASSAGES], CYCLES)
    alone = marginal_answer(tiny_reader, QUESTION, PASSAGES, max_new_tokens=4)
    with tiny_reader.session(*prompts) as session:
        kept = marginal_answer(session, QUESTION, PASSAGES, max_new_tokens=4)
    assert kept.candidates == alone.candidates and kept.probabilities == pytest.approx(alone.probabilities, abs=1e-4)
    assert kept.stats.computed_tokens < alone.stats.computed_tokens / 2


def test_rejects(tiny_reader):
    with pytest.raises(InputError, match="passages: expected at least one passage"):
        marginal_answer(tiny_reader, QUESTION, [])
