"""Analyses, against transformers one sequence at a time and against hand-worked numbers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, one_by_one, tiny_llama

from fastreader import Example, Passage, Reader, Template
from fastreader.errors import InputError
from fastreader.moi import Observations, analyses
from fastreader.moi.analyses import first_token_distances, gold_places, gold_ranks, mean_bias, partition_means, polarity
from fastreader.moi.analyses.outcomes import outcomes
from fastreader.scoring.reading import reading_prompts
from fastreader.statistics.measures.answers import contained, exact_match, f1

TEMPLATE = Template(header="Read:\n")
PASSAGES = [Passage("The Seine."), Passage("The Nile.", is_gold=True), Passage("The Po.")]
EXAMPLE = Example("Which river is in Cairo?", PASSAGES, answers=["Nile", "the Nile", " Nile"], id="a")
ORDERS = [list(o) for o in itertools.permutations(range(3))]


@pytest.fixture(scope="module")
def both():
    model = tiny_llama()
    return Reader.load((model, byte_tokenizer()), device="cpu", precision="exact"), model


def nats(both, order):
    """Log of the summed likelihoods of the two distinct right answers, one sequence at a time."""
    reader, model = both
    (prompt,) = reading_prompts(reader, EXAMPLE.question, PASSAGES, [order], TEMPLATE)
    answers = [(prompt, reader.continuation(a, end=True)) for a in ("Nile", "the Nile")]
    return np.logaddexp.reduce([x.sum() for x in one_by_one(model, answers)])


def greedy(both, order, count=6):
    """A greedy text through transformers' own forward, up to a line break."""
    reader, model = both
    (prompt,) = reading_prompts(reader, EXAMPLE.question, PASSAGES, [order], TEMPLATE)
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in reader.end_tokens:
                break
    return reader.encoder.text(ids[len(prompt) :]).split("\n")[0]


def test_outcomes(both):
    results, stats = outcomes(both[0], EXAMPLE, [[0, 1, 2], [2, 1, 0], [0, 1, 2]], template=TEMPLATE, max_new_tokens=6)
    assert results[0] == results[2]
    assert stats.computed_tokens < stats.total_tokens
    for order, result in (([0, 1, 2], results[0]), ([2, 1, 0], results[1])):
        assert result.nats == pytest.approx(nats(both, order), abs=1e-4)
        text = result.text
        assert (result.em, result.contained, result.f1) == (
            exact_match(text, EXAMPLE.answers), contained(text, EXAMPLE.answers), f1(text, EXAMPLE.answers)
        )  # fmt: skip
    assert results[0].text == greedy(both, [0, 1, 2]).strip()
    silent, _ = outcomes(both[0], EXAMPLE, [[0, 1, 2]], template=TEMPLATE, write=False)
    assert silent[0].text == ""
    assert silent[0].nats == pytest.approx(results[0].nats, abs=1e-5)


def test_outcomes_of_a_right_answer(both, monkeypatch):
    from fastreader.core.protocol import Generation, Results
    from fastreader.core.tree import TreeStats

    answer = Results([[Generation(" The Nile.", [], "stop", 9)]], TreeStats(1, 9, 9, 0))
    monkeypatch.setattr(both[0], "generate", lambda prompts, **settings: answer)
    (result,), _ = outcomes(both[0], EXAMPLE, [[0, 1, 2]], template=TEMPLATE)
    assert (result.text, result.em, result.contained, result.f1) == ("The Nile.", 1.0, 1.0, 1.0)


def test_outcomes_need_answers_and_orders(both):
    for none in ([], [" ", ""]):
        with pytest.raises(InputError, match="right answers"):
            outcomes(both[0], Example("q", PASSAGES, answers=none), [[0, 1, 2]])
    (want,), _ = outcomes(both[0], EXAMPLE, [[0, 1, 2]], template=TEMPLATE, write=False)
    blank = replace(EXAMPLE, answers=[*EXAMPLE.answers, " "])
    assert outcomes(both[0], blank, [[0, 1, 2]], template=TEMPLATE, write=False)[0] == [want]
    with pytest.raises(InputError, match="at least one"):
        outcomes(both[0], EXAMPLE, [])


def test_polarity(both):
    orders = {"retriever": [[0, 1, 2]], "other": [[1, 0, 2]]}
    found = {p.name: p for p in polarity(both[0], [EXAMPLE], orders, template=TEMPLATE, write=False)}
    want = nats(both, [1, 0, 2]) - nats(both, [2, 0, 1])
    assert found["other"].loss() == [pytest.approx(want, abs=2e-4)]
    assert found["other"].to_dict()["loss"]["nats"] == pytest.approx(want, abs=2e-4)
    assert found["retriever"].loss("em") == [0.0]
    with pytest.raises(InputError, match="nats, em"):
        found["other"].loss("bleu")
    with pytest.raises(InputError, match="one for each of 1 questions, got 2"):
        polarity(both[0], [EXAMPLE], {"x": [[0, 1, 2]] * 2})


def test_polarity_of_a_palindrome_is_zero(both):
    one = Example("q?", PASSAGES[:1], answers=["Nile"])
    assert polarity(both[0], [one], {"only": [[0]]}, template=TEMPLATE, write=False)[0].loss() == [0.0]


def test_gold_ranks():
    ranks = gold_ranks([[2, 0, 1], [0, 1, 2], [1, 2, 0], [0, 1, 2]], [2, 1, 0, None])
    assert ranks.places == [0, 1, 2, None]
    assert ranks.mrr == pytest.approx((1 + 1 / 2 + 1 / 3 + 0) / 4)
    assert ranks.shares.tolist() == [0.25, 0.25, 0.25]
    with pytest.raises(InputError, match="one for each"):
        gold_ranks([[0, 1]], [])


def test_gold_places(both):
    found = gold_places(both[0], [EXAMPLE], template=TEMPLATE, write=False)
    want = [nats(both, order) for order in ([1, 0, 2], [0, 1, 2], [0, 2, 1])]
    np.testing.assert_allclose(found.by_place()[0], want, atol=2e-4)
    assert found.to_dict()["means"]["nats"] == pytest.approx(want, abs=2e-4)
    with pytest.raises(InputError, match="one of them gold"):
        gold_places(both[0], [EXAMPLE, Example("q", [Passage("x")] * 3, answers=["a"])], write=False)
    with pytest.raises(InputError, match="nats, em"):
        found.by_place("bleu")


def test_first_token_distances(both):
    reader, model = both
    found = first_token_distances(reader, EXAMPLE.question, PASSAGES, ORDERS, template=TEMPLATE)
    shares = []
    for prompt in reading_prompts(reader, EXAMPLE.question, PASSAGES, ORDERS, TEMPLATE):
        with torch.inference_mode():
            shares.append(model(torch.tensor([prompt])).logits[0, -1].double().softmax(-1).numpy())
    want = np.array([[np.abs(a - b).sum() for b in shares] for a in shares])
    assert want.max() > 1e-2
    np.testing.assert_allclose(found, want, atol=1e-5)
    small = first_token_distances(reader, EXAMPLE.question, PASSAGES, ORDERS, template=TEMPLATE, max_batch_tokens=150)
    np.testing.assert_allclose(small, want, atol=1e-5)  # several passes
    with pytest.raises(InputError, match="at least one"):
        first_token_distances(reader, "q", PASSAGES, [])


def test_distances_over_several_blocks_of_the_vocabulary(both, monkeypatch):
    import fastreader.moi.analyses.first_token as module

    whole = first_token_distances(both[0], EXAMPLE.question, PASSAGES, ORDERS, template=TEMPLATE)
    monkeypatch.setattr(module, "_VOCABULARY", 100)
    parts = first_token_distances(both[0], EXAMPLE.question, PASSAGES, ORDERS, template=TEMPLATE)
    np.testing.assert_allclose(parts, whole, atol=1e-12)


def test_partition_means():
    distances = np.array([[0, 1, 4, 5], [1, 0, 6, 7], [4, 6, 0, 3], [5, 7, 3, 0]], dtype=float)
    orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0]]
    assert partition_means(distances, orders) == (2.0, 5.5)
    within, between = partition_means(distances[:2, :2], orders[:2])
    assert within == 1.0
    assert np.isnan(between)
    with pytest.raises(InputError, match=r"\[4, 4\]"):
        partition_means(distances[:2], orders)


def test_mean_bias():
    """Prefixes identify the bias of each question: the mean is the one the scores were made with."""
    rng = np.random.default_rng(0)
    bias = np.array([0.6, 0.3, 0.1])
    orders = np.array(list(itertools.permutations(range(4), 3)))
    questions = [Observations(rng.normal(0, 2, 4)[orders] @ bias, orders, 4) for _ in range(4)]
    found = mean_bias(questions)
    np.testing.assert_allclose(found.mean, bias, atol=1e-4)
    assert all(found.identified)
    assert (found.standard_error < 1e-4).all()
    np.testing.assert_allclose(found.coefficients.sum(axis=1), 1)
    shorter = Observations(np.arange(24.0)[::2], np.array(list(itertools.permutations(range(4), 2))), 4)
    for bad, message in (([], "at least one"), ([questions[0], shorter], "one number of places")):
        with pytest.raises(InputError, match=message):
            mean_bias(bad)
    with pytest.raises(InputError, match="at least 2 questions"):
        _ = mean_bias(questions[:1]).standard_error


def test_names():
    assert all(hasattr(analyses, name) for name in analyses.__all__)
