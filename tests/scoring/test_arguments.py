"""Arguments of the main calls: bools are bools, passages have an order, counts have a limit."""

from __future__ import annotations

import numpy as np
import pytest

from fastreader import InputError, moi, permutations, score_permutations, sure

PASSAGES = ["The sky is blue.", "Grass is green."]
BOOLS = ("question_only", "score_passages", "closed_book", "query_likelihood", "token_logprobs")


@pytest.mark.parametrize("name", BOOLS)
@pytest.mark.parametrize("value", [-1, 1, 0, None, "yes", np.int64(1)])
def test_a_number_is_no_bool(tiny_reader, name, value):
    with pytest.raises(InputError, match=f"^{name}: expected True or False, got"):
        score_permutations(tiny_reader, "What is blue?", PASSAGES, ["sky"], **{name: value})


def test_a_bool_of_numpy_is_a_bool(tiny_reader):
    got = score_permutations(tiny_reader, "What is blue?", PASSAGES, ["sky"], score_passages=np.bool_(True))
    assert got.passages_logprobs.shape == (2,)


UNORDERED = [set(PASSAGES), dict.fromkeys(PASSAGES), dict.fromkeys(PASSAGES).keys(), {1: "a"}.values(), frozenset("a")]


@pytest.mark.parametrize("passages", UNORDERED, ids=lambda value: type(value).__name__)
def test_passages_without_an_order_are_refused(tiny_reader, passages):
    for call in (
        lambda: score_permutations(tiny_reader, "What is blue?", passages, ["sky"]),
        lambda: moi.rerank(tiny_reader, "What is blue?", passages),
        lambda: moi.plan(tiny_reader, "What is blue?", passages),
        lambda: sure.answer(tiny_reader, "What is blue?", passages),
    ):
        with pytest.raises(InputError, match=r"^passages: expected a list"):
            call()


def test_candidates_without_an_order_are_refused(tiny_reader):
    with pytest.raises(InputError, match=r"^candidates: expected a list of texts"):
        score_permutations(tiny_reader, "What is blue?", PASSAGES, {"sky", "grass"})


def test_passages_of_a_generator_are_read_once(tiny_reader):
    got = score_permutations(tiny_reader, "What is blue?", iter(PASSAGES), ["sky"])
    want = score_permutations(tiny_reader, "What is blue?", PASSAGES, ["sky"])
    assert got.logprobs.tolist() == want.logprobs.tolist()


@pytest.mark.parametrize(("name", "value"), [("n", 2**31), ("max_new_tokens", 2**31), ("seed", 2**63)])
def test_generate_states_its_limits(tiny_reader, name, value):
    with pytest.raises(InputError, match=f"^{name}: expected an integer"):
        tiny_reader.generate(["x"], **{name: value})


@pytest.mark.parametrize(
    "call",
    [
        lambda: permutations.cyclic(2**31),
        lambda: permutations.identity(2**63),
        lambda: permutations.random(20, 10**9),
        lambda: permutations.latin(20, 10**9),
        lambda: permutations.prefix_sharing(1_000, 10**9),
    ],
)
def test_designs_that_fit_no_memory_are_refused(call):
    with pytest.raises(InputError, match=r"(n|count|squares): expected an integer from 1 to \d+, got"):
        call()
