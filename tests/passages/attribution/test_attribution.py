"""Attribution of an answer to passages, against brute force, published definitions and another library."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from helpers.support import one_by_one

import fastreader as fr
from fastreader.errors import ContextOverflowError, InputError
from fastreader.passages.attribution import subsets as sets
from fastreader.passages.attribution.attribute import NOT_RAISED, NOT_STATED
from fastreader.passages.attribution.surrogate import left_out_fit, log_odds, sparse_weights
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template

QUESTION, ANSWER = "What colour is the sky?", "blue"
PASSAGES = ["The sky is blue.", "Ann saw it at noon.", "The sea is deep."]


def by_orders(count, values):
    """Shapley values by their definition: the mean of what a passage adds, over all orders."""
    found = np.zeros(count)
    for order in itertools.permutations(range(count)):
        for place, i in enumerate(order):
            before = tuple(sorted(order[:place]))
            found[i] += values[tuple(sorted((*before, i)))] - values[before]
    return found / math.factorial(count)


def drawn_values(count, seed, noise=3.0):
    rng = np.random.default_rng(seed)
    return {subset: float(noise * rng.standard_normal()) for subset in sets.every_subset(count)}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_shapley_values_are_the_mean_over_all_orders(count):
    values = drawn_values(count, count)
    found = sets.shapley(count, values)
    np.testing.assert_allclose(found, by_orders(count, values), atol=1e-9)
    assert found.sum() == pytest.approx(values[tuple(range(count))] - values[()], abs=1e-9)


def test_a_known_game():
    """The glove game of textbooks: of a left glove and two right ones a pair is worth 1. Shapley: 2/3, 1/6, 1/6."""
    values = {s: float(0 in s and (1 in s or 2 in s)) for s in sets.every_subset(3)}
    np.testing.assert_allclose(sets.shapley(3, values), [2 / 3, 1 / 6, 1 / 6], atol=1e-12)
    np.testing.assert_array_equal(sets.synergies(3, values), [[0, 1, 1], [1, 0, 0], [1, 0, 0]])


def test_sampled_values_are_within_two_errors():
    """In 95 % of passages of 1,000 games, some with interactions, with the default number of orders."""
    within, total = 0, 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        values = drawn_values(7, seed, noise=float(rng.choice([0.1, 3.0])))
        own = rng.standard_normal(7)
        values = {subset: value + own[list(subset)].sum() for subset, value in values.items()}
        found, error = sets.sampled_shapley(sets.random_orders(7, 16, rng), values)
        within += int((abs(found - sets.shapley(7, values)) <= 2 * error).sum())
        total += 7
    assert total == 7000 and within >= 0.945 * total  # of which passages of one game are not independent


def test_the_surrogate_is_sklearns_lasso_on_scaled_inputs():
    linear_model, preprocessing = (pytest.importorskip(f"sklearn.{m}") for m in ("linear_model", "preprocessing"))
    rng = np.random.default_rng(3)
    for penalty, count, rows in ((0.01, 5, 32), (0.3, 12, 64), (2.0, 20, 40)):
        masks = rng.random((rows, count)) < 0.5
        values = masks @ rng.standard_normal(count) * 2 + rng.standard_normal(rows)
        scaler = preprocessing.StandardScaler()
        lasso = linear_model.Lasso(alpha=penalty, tol=1e-12, max_iter=100_000).fit(
            scaler.fit_transform(masks.astype(float)), values
        )
        weights, intercept = sparse_weights(masks, values, penalty)
        np.testing.assert_allclose(weights, lasso.coef_ / scaler.scale_, atol=1e-6)
        assert intercept == pytest.approx(lasso.intercept_ - (scaler.mean_ / scaler.scale_) @ lasso.coef_, abs=1e-6)


def test_the_fit_tells_sums_from_noise():
    rng = np.random.default_rng(4)
    masks = rng.random((64, 6)) < 0.5
    assert left_out_fit(masks, masks @ rng.standard_normal(6), 0.001, rng) > 0.99
    assert left_out_fit(masks, rng.standard_normal(64), 0.01, rng) < 0.3
    assert left_out_fit(masks[:8], np.arange(8.0), 0.01, rng) is None


def test_log_odds_of_a_certain_answer_are_a_number():
    np.testing.assert_allclose(log_odds([math.log(0.5), math.log(0.2)]), [0.0, math.log(0.25)], atol=1e-12)
    assert np.isfinite(log_odds([-1e-300, -800.0])).all()


@pytest.mark.parametrize("template", [Template(), Template(question_first=True), Template(passage="{number}. {text}")])
def test_every_subset_against_the_model_one_text_at_a_time(tiny_reader, template):
    passages = [*PASSAGES, "Grass is green."]
    count = len(passages)
    found = fr.attribute(tiny_reader, QUESTION, passages, ANSWER, template=template)
    pieces = encode(tiny_reader.encoder, template, QUESTION, list(map(as_passage, passages)), [ANSWER])
    wanted = sets.every_subset(count)
    texts = [(pieces.head + pieces.body(subset) + pieces.tail(), pieces.candidates[0]) for subset in wanted]
    own = [values.sum() for values in one_by_one(tiny_reader.local_model.model.original, texts)]
    values = dict(zip(wanted, own, strict=True))
    whole = tuple(range(count))
    assert found.exact and found.subsets == 2**count and found.note in ("", NOT_RAISED, NOT_STATED)
    assert (found.logprob, found.closed_book_logprob) == pytest.approx((values[whole], values[()]), abs=1e-4)
    np.testing.assert_allclose(found.shapley, by_orders(count, values), atol=1e-4)
    np.testing.assert_allclose(found.alone, [values[i,] - values[()] for i in whole], atol=1e-4)
    np.testing.assert_allclose(
        found.left_out, [values[whole] - values[sets.without(whole, i)] for i in whole], atol=1e-4
    )
    np.testing.assert_allclose(found.pairs, sets.synergies(count, values), atol=1e-4)
    weights, _ = sparse_weights(sets.masks(count, wanted), log_odds(own), 0.01)
    np.testing.assert_allclose(found.surrogate, weights, atol=1e-3)
    assert found.stats.computed_tokens < 0.5 * found.stats.total_tokens


def as_passage(passage):
    return passage if isinstance(passage, fr.Passage) else fr.Passage(passage)


def test_sampling_reads_what_it_needs_and_agrees(tiny_reader):
    passages = [f"Fact {i}: the {word} is {word}." for i, word in enumerate(["sky", "sea", "sun", "ice", "fog"])]
    exact = fr.attribute(tiny_reader, QUESTION, passages, ANSWER)
    sampled = fr.attribute(tiny_reader, QUESTION, passages, ANSWER, way="sampled", orders=200, pairs=True)
    assert not sampled.exact and sampled.subsets <= 32
    np.testing.assert_allclose(sampled.shapley, exact.shapley, atol=4 * sampled.shapley_error.max() + 1e-6)
    assert sampled.shapley.sum() == pytest.approx(exact.shapley.sum(), abs=1e-6)
    for name in ("alone", "left_out", "pairs"):
        np.testing.assert_allclose(getattr(sampled, name), getattr(exact, name), atol=1e-5)
    few = fr.attribute(tiny_reader, QUESTION, passages, ANSWER, way="sampled", orders=1, subsets=1)
    assert np.isnan(few.shapley_error).all() and few.pairs is None and few.surrogate_fit is None
    again = fr.attribute(tiny_reader, QUESTION, passages, ANSWER, way="sampled", orders=1, subsets=1)
    np.testing.assert_array_equal(few.shapley, again.shapley)


def test_many_passages_are_sampled(tiny_reader):
    passages = [f"Number {i}." for i in range(50)]
    with pytest.raises(InputError, match="subsets of at most 12 passages, got 50 passages; 'sampled' reads"):
        fr.attribute(tiny_reader, QUESTION, passages, ANSWER, way="exact")
    found = fr.attribute(tiny_reader, QUESTION, passages, ANSWER, orders=1, subsets=2)
    assert not found.exact and found.subsets <= 1 + 50 + 50 + 1 + 2 * 49 + 2


def test_an_answer_is_generated_and_everything_is_saved(tiny_reader, tmp_path):
    found = fr.attribute(tiny_reader, fr.Example(QUESTION, PASSAGES, id="q7"), max_new_tokens=4)
    assert found.generated and found.answer and found.id == "q7"
    found.save(tmp_path / "a.json")
    back = fr.Attribution.load(tmp_path / "a.json")
    np.testing.assert_array_equal(back.shapley, found.shapley)
    assert back.to_dict() == found.to_dict() == json.loads(json.dumps(found.to_dict()))
    assert f"{found.answer!r}" in repr(found).splitlines()[0]
    assert sorted(found.order) == list(range(len(PASSAGES)))


def test_frame_and_figure(tiny_reader, tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    found = fr.attribute(tiny_reader, QUESTION, PASSAGES, ANSWER)
    frame = found.to_pandas()
    assert frame["shapley"].tolist() == found.shapley.tolist() and len(frame) == len(PASSAGES)
    found.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_equal_passages_share_and_one_passage_has_all(tiny_reader):
    twice = fr.attribute(tiny_reader, QUESTION, ["The sky is blue."] * 2, ANSWER)
    assert twice.shapley.sum() == pytest.approx(twice.logprob - twice.closed_book_logprob, abs=1e-9)
    assert twice.alone[0] == pytest.approx(twice.alone[1], abs=1e-5)
    one = fr.attribute(tiny_reader, QUESTION, ["The sky is blue."], ANSWER)
    assert one.shapley[0] == one.alone[0] == one.left_out[0] and one.surrogate_fit is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passages": []}, "passage"),
        ({"answer": " "}, "answer"),
        ({"answer": 3}, "answer"),
        ({"way": "all"}, "way"),
        ({"orders": 0}, "orders"),
        ({"subsets": 0}, "subsets"),
        ({"penalty": -1.0}, "penalty"),
        ({"seed": -1}, "seed"),
        ({"on_overflow": "drop"}, "on_overflow"),
    ],
)
def test_bad_input_is_named(tiny_reader, change, message):
    with pytest.raises(InputError, match=message):
        fr.attribute(tiny_reader, **{"question": QUESTION, "passages": PASSAGES, "answer": ANSWER, **change})


def test_passages_that_do_not_fit(tiny_reader):
    passages = ["word " * 300, "The sky is blue. " * 80]
    with pytest.raises(ContextOverflowError, match="on_overflow='truncate'"):
        fr.attribute(tiny_reader, QUESTION, passages, ANSWER)
    found = fr.attribute(tiny_reader, QUESTION, passages, ANSWER, on_overflow="truncate")
    assert "cut to fit the context" in found.note and np.isfinite(found.shapley).all()


def test_an_answer_that_no_passage_states_is_cautioned_about(tiny_reader):
    notes = {
        answer: fr.attribute(tiny_reader, QUESTION, PASSAGES, answer).note
        for answer in ("blue", "the municipal pool", "yes", "It is blue since the air scatters blue light the most.")
    }
    assert notes["the municipal pool"] in (NOT_STATED, NOT_RAISED)
    assert NOT_STATED not in {note for answer, note in notes.items() if answer != "the municipal pool"}
