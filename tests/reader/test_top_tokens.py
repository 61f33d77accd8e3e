"""The most likely tokens at each place, scored and generated, held to transformers."""

import numpy as np
import pytest
import torch
from helpers.support import tiny_llama

from fastreader.core.options import StepOptions


@pytest.mark.parametrize("count", [1, 5, 400])
def test_top_tokens_are_those_of_the_model(tiny_reader, count):
    model_of_tiny, generator = tiny_llama(), np.random.default_rng(0)
    sequences = [
        (generator.integers(3, 90, size=length).tolist(), generator.integers(3, 90, size=4).tolist())
        for length in (1, 5, 9)
    ]
    sequences.append((sequences[0][0], []))
    plain, found = (tiny_reader.score(sequences, top_tokens=most) for most in (0, count))
    assert plain.top_tokens is None and plain.top_logprobs is None
    assert np.array_equal(plain.logprob, found.logprob) and np.array_equal(plain.is_greedy, found.is_greedy)
    for i, ((context, continuation), tokens, values) in enumerate(
        zip(sequences, found.top_tokens, found.top_logprobs, strict=True)
    ):
        if not continuation:
            assert len(tokens) == len(values) == 0
            continue
        with torch.no_grad():
            logits = model_of_tiny(torch.tensor([context + continuation])).logits[0].double()
        rows = logits.log_softmax(-1)[len(context) - 1 : len(context) - 1 + len(continuation)]
        most = rows.topk(min(count, rows.shape[-1]))
        np.testing.assert_allclose(values, most.values.numpy(), atol=1e-5)
        assert np.array_equal(np.sort(tokens), np.sort(most.indices.numpy()))
        assert np.array_equal(tokens[:, 0], rows.argmax(-1).numpy())
        scored = found.token_logprobs[i]
        assert np.array_equal(scored >= values[:, 0], np.asarray(continuation) == tokens[:, 0])  # to the last bit


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_top_tokens_of_generated_texts(tiny_reader, temperature):
    options = StepOptions(
        max_new_tokens=5, n=2, temperature=temperature, seed=3, token_logprobs=True, top_logprobs=4, progress=False
    )
    steps, seen = tiny_reader.generate_steps([[5, 6, 7]], options), []
    while True:
        try:
            seen.append([list(text.tokens) for text in next(steps)])
        except StopIteration as end:
            (texts,) = end.value
            break
    assert [text.token_ids for text in texts] == seen[-1] and len(seen) == 5
    assert [len(tokens) for tokens, _ in seen] == [1, 2, 3, 4, 5]
    for text in texts:
        with torch.no_grad():
            rows = tiny_llama()(torch.tensor([[5, 6, 7, *text.token_ids]])).logits[0].double().log_softmax(-1)[2:-1]
        most = rows.topk(4)
        assert [[token for token, _ in top] for top in text.top_logprobs] == most.indices.tolist()
        np.testing.assert_allclose([[value for _, value in top] for top in text.top_logprobs], most.values, atol=1e-5)


def test_a_dropped_text_costs_no_further_step(tiny_reader):
    options = StepOptions(max_new_tokens=6, progress=False)
    whole = tiny_reader.generate([[5, 6, 7], [8, 9]], max_new_tokens=6)
    steps, lengths = tiny_reader.generate_steps([[5, 6, 7], [8, 9]], options), []
    while True:
        try:
            first, second = next(steps)
        except StopIteration as end:
            found = end.value
            break
        lengths.append((len(first.tokens), len(second.tokens)))
        if len(second.tokens) == 2:
            second.finish_reason = "left"
    assert lengths[-1] == (6, 2)
    assert found[0] == whole[0]
