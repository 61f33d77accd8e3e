"""The distracting effect compared with the log-probability of the label after its own prompt."""

import math

import pytest

import fastreader as fr
from fastreader.errors import InputError
from fastreader.noise import NoiseTemplate, distracting_effects

PASSAGES = [fr.Passage("Paris is old.", "Paris"), fr.Passage("Rome is big.")]


def test_it_is_one_less_the_probability_of_the_label(tiny_reader):
    texts = NoiseTemplate(instruction="Answer, or say no.\n", no_answer="no")
    found = distracting_effects(tiny_reader, "Who?", PASSAGES, template=texts)
    assert found.shape == (2,)
    for passage, effect in zip(PASSAGES, found, strict=True):
        prompt = tiny_reader.prompt(texts.pieces("Who?", [passage]), **texts.options())
        label = tiny_reader.tokenizer.encode(" no", add_special_tokens=False)
        (alone,) = tiny_reader.loglikelihood([(prompt, label)])
        assert effect == pytest.approx(1 - math.exp(alone.logprob), abs=1e-6)


def test_without_passages_it_raises(tiny_reader):
    with pytest.raises(InputError, match="passages: expected at least one passage"):
        distracting_effects(tiny_reader, "Who?", [])


def test_a_passage_with_the_answer_distracts_more_with_a_real_reader(packaged_reader):
    """Saying that there is no answer is less probable where there is one."""
    with_answer, without = distracting_effects(
        packaged_reader,
        "Who wrote On the Origin of Species?",
        ["Charles Darwin wrote On the Origin of Species in 1859.", "The Nile flows through eleven countries."],
    )
    assert 0 <= without < with_answer <= 1
