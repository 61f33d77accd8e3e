"""fr.classify: labels of prompts."""

import numpy as np
import pytest
from helpers.support import one_by_one, tiny_llama

import fastreader as fr
from fastreader.errors import InputError

LABELS = ["good", "goods and more", "bad"]
PROMPTS = ["Judge it. The soup was cold.", "Judge it. The bread was fresh.", ["Judge it. ", "Cats sleep."]]


def scored(reader, prompts, end=False):
    pairs = [
        (reader.prompt([p] if isinstance(p, str) else p), reader.continuation(label, end=end))
        for p in prompts
        for label in LABELS
    ]
    return np.array([float(v.sum()) for v in one_by_one(tiny_llama().double(), pairs)]).reshape(len(prompts), 3)


@pytest.mark.parametrize("end", [False, True])
def test_log_probabilities_are_those_of_transformers(tiny_reader, end):
    found = fr.classify(tiny_reader, PROMPTS, LABELS, end=end)
    want = scored(tiny_reader, PROMPTS, end)
    assert found.logprobs == pytest.approx(want, abs=2e-5)
    shares = np.exp(want) / np.exp(want).sum(axis=1, keepdims=True)
    assert found.probabilities == pytest.approx(shares, abs=1e-5)
    assert found.best == [LABELS[i] for i in want.argmax(axis=1)]
    assert found.stats.computed_tokens < found.stats.total_tokens


def test_neutral_prompts_take_the_labels_own_weight_away(tiny_reader):
    found = fr.classify(tiny_reader, PROMPTS, LABELS, neutral=["Judge it. N/A", "Judge it. "])
    prior = scored(tiny_reader, ["Judge it. N/A", "Judge it. "]).mean(axis=0)
    assert found.prior == pytest.approx(prior, abs=2e-5)
    assert found.best == [LABELS[i] for i in (scored(tiny_reader, PROMPTS) - prior).argmax(axis=1)]


def test_token_ids_and_no_prompts(tiny_reader):
    tokens = tiny_reader.prompt([PROMPTS[0]])
    by_tokens = fr.classify(tiny_reader, [tokens, np.array(tokens)], LABELS)
    assert by_tokens.logprobs[1] == pytest.approx(fr.classify(tiny_reader, PROMPTS[:1], LABELS).logprobs[0], abs=1e-6)
    nothing = fr.classify(tiny_reader, [], LABELS)
    assert len(nothing) == 0 and nothing.best == [] and nothing.probabilities.shape == (0, 3)
    frame = by_tokens.to_pandas()
    assert list(frame.columns) == ["index", "label", "probability", "logprob"] and len(frame) == 6
    assert by_tokens.to_dict()["best"] == by_tokens.best and "2 prompts, 3 labels" in repr(by_tokens)


def test_bad_input(tiny_reader):
    for labels in (["a"], ["a", "a "], [], ["a", ""]):
        with pytest.raises(InputError, match="labels"):
            fr.classify(tiny_reader, PROMPTS, labels)
    for prompt in ("", [], [""], [1, "a"]):
        with pytest.raises(InputError, match=r"prompts\[0\]|prompts"):
            fr.classify(tiny_reader, [prompt], LABELS)
    with pytest.raises(InputError, match="prompts"):
        fr.classify(tiny_reader, "one text", LABELS)
