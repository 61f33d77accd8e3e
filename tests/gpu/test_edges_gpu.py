"""Requests at the edges on the device, compared with the CPU: nothing to score, one token, no end of a text."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.families import tiny
from helpers.support import byte_tokenizer

from fastreader import Reader

pytestmark = pytest.mark.gpu
PROMPT = np.random.default_rng(0).integers(5, 250, 20).tolist()


def scores(*sequences: tuple[list[int], list[int]]) -> Callable[[Reader], Any]:
    return lambda reader: [row.tolist() for row in reader.score(list(sequences)).token_logprobs]


def texts(*prompts: list[int], **options: Any) -> Callable[[Reader], Any]:
    return lambda reader: [list(text.token_ids) for (text,) in reader.generate(list(prompts), **options)]


def logprobs_of_a_text(reader: Reader) -> Any:
    (text,) = reader.generate([PROMPT], max_new_tokens=3, token_logprobs=True)[0]
    return [list(text.token_logprobs)]


def session(reader: Reader) -> Any:
    with reader.session(PROMPT) as kept:
        rows = kept.loglikelihood([(PROMPT, [7]), ([*PROMPT, 9], [8, 7])])
        return [[row.logprob for row in rows], *texts(PROMPT, max_new_tokens=3)(kept)]


CASES: dict[str, Callable[[Reader], Any]] = {
    "an empty continuation": scores((PROMPT, [])),
    "one empty continuation of two": scores((PROMPT, []), (PROMPT[:5], [7, 8])),
    "contexts of one token": scores(([5], [7])),
    "one sequence three times": scores(*[(PROMPT, [7, 8])] * 3),
    "a text": texts(PROMPT, max_new_tokens=4),
    "a text of one token": texts(PROMPT, max_new_tokens=1),
    "two texts": texts(PROMPT, PROMPT[:3], max_new_tokens=2),
    "token ids that stop": texts(PROMPT, max_new_tokens=4, stop_token_ids=[9]),
    "a string that stops": texts(PROMPT, max_new_tokens=6, stop=["a"]),
    "log-probabilities of a text": logprobs_of_a_text,
    "a session that knows all": session,
}


@pytest.fixture(scope="module", params=[True, False], ids=["end tokens", "no end tokens"])
def readers(request: pytest.FixtureRequest) -> tuple[Reader, Reader]:
    """One reader on the CPU, and the same on the device."""
    model, tokenizer = tiny("Llama"), byte_tokenizer()
    if not request.param:
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token = None
    here = Reader.load((copy.deepcopy(model), tokenizer), device="cpu", precision="exact")
    there = Reader.load((model.cuda(), tokenizer), precision="exact")
    assert bool(here.local_model.end_tokens) == bool(there.local_model.end_tokens) == request.param
    return here, there


@pytest.mark.parametrize("case", CASES)
def test_as_on_the_cpu(case: str, readers: tuple[Reader, Reader]) -> None:
    want, got = (CASES[case](reader) for reader in readers)
    assert [len(row) for row in got] == [len(row) for row in want]
    for row, wanted in zip(got, want, strict=True):
        assert row == pytest.approx(wanted, abs=2e-4)
