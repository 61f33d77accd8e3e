"""A given model that is trained on: a reader of it refuses to mix weights copied before with those after."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama

from fastreader import Reader
from fastreader.errors import FastreaderError

SEQUENCES = random_sequences(np.random.default_rng(0), 261, count=4)
CHANGED = "the weights of the given model changed after the reader was made"


def by_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()


def by_hand(model):
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] += 0.1


def past_the_version(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.1)


def by_new_memory(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def by_state(model):
    model.load_state_dict(tiny_llama(seed=1).state_dict())


@pytest.mark.parametrize("change", [by_optimizer, by_hand, past_the_version, by_new_memory, by_state])
def test_every_call_raises_after_a_change(change):
    model = tiny_llama()
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="fast")
    trees = reader.plan(SEQUENCES)
    session = reader.session(SEQUENCES[0][0])
    reader.score(SEQUENCES)
    change(model)
    calls = [
        lambda: reader.score(SEQUENCES),
        lambda: reader.score(SEQUENCES, trees=trees),
        lambda: reader.loglikelihood(SEQUENCES),
        lambda: reader.generate([[5, 6]], max_new_tokens=2),
        lambda: session.loglikelihood([SEQUENCES[0]]),
        lambda: session.generate([SEQUENCES[0][0]], max_new_tokens=2),
    ]
    for call in calls:
        with pytest.raises(FastreaderError, match=CHANGED):
            call()
    want = np.concatenate(one_by_one(copy.deepcopy(model), SEQUENCES))
    again = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact").score(SEQUENCES)
    np.testing.assert_allclose(np.concatenate(again.token_logprobs), want, atol=2e-5)


def test_a_copy_of_its_own_and_reading_do_not_count_as_changes():
    model = tiny_llama()
    of_copy = Reader.load((model, byte_tokenizer()), device="cpu", dtype="bfloat16", precision="exact")
    shared = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
    before = of_copy.score(SEQUENCES).logprob, shared.score(SEQUENCES).logprob
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    assert [(r.score(SEQUENCES).logprob == b).all() for r, b in zip((of_copy, shared), before, strict=True)] == [1, 1]
    by_hand(model)
    np.testing.assert_array_equal(of_copy.score(SEQUENCES).logprob, before[0])
