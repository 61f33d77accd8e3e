"""The penalty of repeated tokens, compared with transformers', and that it reaches every reader."""

import numpy as np
import pytest
import torch
from helpers.engine_server import Engine, running
from helpers.support import byte_tokenizer, tiny_llama
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from fastreader import Reader, ServerReader
from fastreader.data.answer_cache import Cache
from fastreader.errors import InputError
from fastreader.reader.generation.sampling import penalise
from fastreader.reader.programs.requests import Write
from fastreader.study.cached_reader import CachedReader

PROMPTS = ["Say it again and again", "Another one", "Another one, longer"]


@pytest.mark.parametrize("penalty", [0.5, 1.1, 3.0])
def test_logits_are_those_of_transformers(penalty):
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(4, 50)))
    texts = [rng.integers(0, 50, size=n).tolist() for n in (1, 7, 30, 80)]
    kept = logits.clone()
    found = penalise(logits, texts, penalty)
    wanted = [
        RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([text]), row[None].clone())[0]
        for text, row in zip(texts, logits, strict=True)
    ]
    assert torch.equal(found, torch.stack(wanted)) and torch.equal(logits, kept)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(3)


@pytest.fixture(scope="module")
def reader(model):
    return Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_greedy_texts_are_those_of_transformers(model, reader, penalty):
    found = reader.generate(PROMPTS, max_new_tokens=24, repetition_penalty=penalty, token_logprobs=True)
    plain = reader.generate(PROMPTS, max_new_tokens=24)
    tokenizer = byte_tokenizer()
    differ = 0
    for prompt, (text,), (without,) in zip(PROMPTS, found, plain, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        whole = model.generate(
            ids, max_new_tokens=24, do_sample=False, repetition_penalty=penalty, pad_token_id=1, eos_token_id=1
        )[0, ids.shape[1] :].tolist()
        own = [token for token in whole if token != 1]
        assert text.token_ids == own
        # log-probabilities are the model's, without the penalty
        scored = reader.loglikelihood([(ids[0].tolist(), own)], token_logprobs=True)[0]
        np.testing.assert_allclose(text.token_logprobs, scored.token_logprobs, atol=1e-4)
        differ += text.token_ids != without.token_ids
    assert differ


def test_samples_are_drawn_from_the_penalised_distribution(reader):
    how = {"max_new_tokens": 12, "temperature": 0.7, "n": 3, "seed": 5}
    strong = reader.generate(PROMPTS, **how, repetition_penalty=1e6)
    for prompt, texts in zip(PROMPTS, strong, strict=True):
        held = set(reader.encoder.prompt_tokens(prompt))
        for text in texts:
            assert len({*text.token_ids}) == len(text.token_ids) and not held & {*text.token_ids}


def test_one_changes_nothing_and_is_not_passed_on(reader, tmp_path):
    assert "repetition_penalty" not in Write("answer", ("x",), 4).options
    assert Write("answer", ("x",), 4, repetition_penalty=1.2).options["repetition_penalty"] == 1.2
    seen = []

    class Other:
        name = "other"

        def describe(self):
            return {"name": "other", "device": "", "dtype": "", "precision": ""}

        def generate(self, prompts, **options):
            seen.append(options)
            return reader.generate(prompts, **options)

    with Cache(tmp_path / "cache.sqlite") as cache:
        cached = CachedReader(Other(), cache)
        first = cached.generate(PROMPTS[:1], max_new_tokens=24, repetition_penalty=1.0)
        other = cached.generate(PROMPTS[:1], max_new_tokens=24, repetition_penalty=1e6)
    assert ["repetition_penalty" in options for options in seen] == [False, True]
    assert first[0][0].token_ids != other[0][0].token_ids


def test_engines_that_know_it_get_it(tiny_reader):
    for kind, known in (("vllm", True), ("llamacpp", False)):
        engine = Engine(tiny_reader, kind)
        with running(engine) as url, ServerReader(url, tokenizer=byte_tokenizer(), retries=0) as served:
            served.generate(["a"], max_new_tokens=2)
            assert all("repetition_penalty" not in body for _, body in engine.seen)
            if known:
                served.generate(["a"], max_new_tokens=2, repetition_penalty=1.5)
                assert engine.seen[-1][1]["repetition_penalty"] == 1.5
            else:
                with pytest.raises(InputError, match="repetition_penalty: expected None, since the llamacpp engine"):
                    served.generate(["a"], max_new_tokens=2, repetition_penalty=1.5)


@pytest.mark.parametrize("penalty", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_penalty_out_of_range_is_rejected(reader, penalty):
    with pytest.raises(InputError, match="repetition_penalty"):
        reader.generate(["a"], repetition_penalty=penalty)
