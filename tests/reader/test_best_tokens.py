"""score(best_tokens=True): the most likely token at each scored place, held to transformers."""

import numpy as np
import torch
from helpers.support import tiny_llama


def test_best_tokens_are_those_of_the_model(tiny_reader):
    model_of_tiny, generator = tiny_llama(), np.random.default_rng(0)
    sequences = [
        (generator.integers(3, 90, size=length).tolist(), generator.integers(3, 90, size=4).tolist())
        for length in (1, 5, 9)
    ]
    sequences.append((sequences[0][0], []))
    plain, found = (tiny_reader.score(sequences, best_tokens=best) for best in (False, True))
    assert plain.best_tokens is None and plain.best_logprobs is None
    assert np.array_equal(plain.logprob, found.logprob) and np.array_equal(plain.is_greedy, found.is_greedy)
    assert found.best_tokens is not None and found.best_logprobs is not None
    for (context, continuation), tokens, values in zip(sequences, found.best_tokens, found.best_logprobs, strict=True):
        with torch.no_grad():
            logits = model_of_tiny(torch.tensor([context + continuation])).logits[0].double()
        rows = logits.log_softmax(-1)[len(context) - 1 : len(context) - 1 + len(continuation)]
        assert tokens.tolist() == rows.argmax(-1).tolist()
        np.testing.assert_allclose(values, rows.max(-1).values.numpy(), atol=1e-5)
