"""The evaluation harness's own numbers: HFLM.loglikelihood on the same pairs, model and tokenizer."""

import warnings

import numpy as np
import pytest

from fastreader import Reader

lm_eval = pytest.importorskip("lm_eval", reason="the test extra brings lm-eval")


def test_same_numbers_and_greedy_flags_as_the_harness(packaged_folder, packaged_model):
    import transformers
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from support import text_pairs

    tokenizer = transformers.AutoTokenizer.from_pretrained(packaged_folder)
    pairs = text_pairs()
    assert len(pairs) == 200
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        harness = HFLM(pretrained=packaged_model, tokenizer=tokenizer, batch_size=4, device="cpu")
        requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
        want = harness.loglikelihood(requests, disable_tqdm=True)
    got = Reader.load((packaged_model, tokenizer), precision="exact").loglikelihood(pairs)
    np.testing.assert_allclose([r.logprob for r in got], [w[0] for w in want], atol=1e-3, rtol=1e-5)
    assert [r.is_greedy for r in got] == [w[1] for w in want]
    assert any(r.is_greedy for r in got) and not all(r.is_greedy for r in got)
