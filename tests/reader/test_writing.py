"""A step of writing in one call gives the bits of one layer by layer, which runs only where `describe` says so."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from helpers.families import tiny
from helpers.support import byte_tokenizer
from test_determinism import PRODUCTS, in_a_session, in_threads

from fastreader import Reader
from fastreader.models.machine.arithmetic import ways
from fastreader.models.rewriting.fused import FusedStep, covers
from fastreader.models.tree_model import TreeModel
from fastreader.ops import extension

pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))

RNG = np.random.default_rng(11)
SHARED = RNG.integers(5, 261, 40).tolist()
PROMPTS = [SHARED[: int(RNG.integers(1, 40))] + RNG.integers(5, 261, n).tolist() for n in (5, 30, 64, 1, 9)]
IN_ONE_CALL = ["Llama", "Llama, biases", "Qwen2", "Qwen3", "Mistral, window", "SmolLM3"]
LAYER_BY_LAYER = {
    "Gemma2, window, caps": "a layer has parts that the kernels do not compute",
    "Granite": "a layer has parts that the kernels do not compute",
    "GPTNeoX": "some layers are the model's own",
    "GPT2": "transformers' own modules",
}


def reader_of(family: str, precision: str = "fast", products: str = "auto") -> Reader:
    pair = tiny(family).to(torch.bfloat16), byte_tokenizer()
    return Reader.load(pair, device="cpu", precision=precision, products=products)


def written(reader, prompts=PROMPTS, **options) -> list[list[tuple[list[int], list[float]]]]:
    options = {"max_new_tokens": 12, "token_logprobs": True} | options
    return [[(text.token_ids, text.token_logprobs) for text in texts] for texts in reader.generate(prompts, **options)]


ENDING = {"max_new_tokens": 40, "stop": list("aeiostn \n")}
WAYS = {
    "one text": lambda r: written(r, PROMPTS[:1]),
    "several": written,
    "samples": lambda r: written(r, n=2, temperature=0.9, top_p=0.9),
    "one leaves after the other": lambda r: written(r, stop_token_ids=range(5, 60)),
    "shared prompts, until few are left": lambda r: written(r, PROMPTS[2:3], n=18, temperature=2.0, **ENDING),
    "a session": lambda r: in_a_session(r, written),
    "one thread": lambda r: in_threads(1, lambda: written(r)),
}


@pytest.mark.parametrize(
    ("family", "precision", "products"),
    [  # each family in two of the ways to multiply, and each way in three families; `make fuzz` runs all
        pytest.param(family, *way.values, marks=[*way.marks, *[pytest.mark.fuzz] * ((row + column) % 2)])
        for row, family in enumerate(IN_ONE_CALL)
        for column, way in enumerate(PRODUCTS)
    ],
)
@pytest.mark.long(keep=6)
def test_the_bits_of_layer_by_layer(monkeypatch, family, precision, products):
    reader = reader_of(family, precision, products)
    if not covers(
        reader.local_model.model.model
    ):  # a layer of random weights may differ by more than the matching allows
        pytest.skip(reader.describe()["forward"])
    assert reader.describe()["forward"].endswith("; writes a step in one call")
    calls = []
    whole = FusedStep.__call__
    monkeypatch.setattr(FusedStep, "__call__", lambda self, *given: calls.append(1) or whole(self, *given))
    got = {}
    for way, call in WAYS.items():
        before = len(calls)
        got[way] = call(reader)
        assert len(calls) > before, way
    before = len(calls)
    monkeypatch.setattr(reader.local_model.model, "fused_step", "not in this test")
    assert {way: call(reader) for way, call in WAYS.items()} == got
    assert len(calls) == before


@pytest.mark.parametrize("isa", extension.instruction_sets() if extension.why_missing() is None else [])
@pytest.mark.parametrize("family", ["Llama, biases", "Mistral, window"])
def test_every_instruction_set(monkeypatch, family, isa):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    tested: list[str] = []
    for products in ways():
        reader = reader_of(family, "high" if products == "bf16x3" else "fast", products)
        got = written(reader)
        if covers(reader.local_model.model.model):
            assert reader.local_model.model.writing_path == "a step in one call"
            tested.append(products)
        monkeypatch.setattr(reader.local_model.model, "fused_step", "not in this test")
        assert written(reader) == got
    assert tested


@pytest.mark.parametrize("family", LAYER_BY_LAYER)
def test_others_say_why_they_go_layer_by_layer(family):
    reader = reader_of(family)
    assert reader.describe()["forward"].endswith(f"; writes layer by layer: {LAYER_BY_LAYER[family]}")
    assert any(tokens for ((tokens, _),) in written(reader))


def test_a_model_that_does_more_than_run_its_layers(monkeypatch):
    """The parts are called without the model's own forward only if they give its bits."""
    from transformers.models.llama import modeling_llama

    forward = modeling_llama.LlamaModel.forward

    @functools.wraps(forward)
    def scaled(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        out.last_hidden_state = out.last_hidden_state * 1.0001
        return out

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", scaled)
    assert "layer by layer: the model does more than" in reader_of("Llama").describe()["forward"]


@pytest.mark.usefixtures("nothing_served")
def test_without_the_extension(monkeypatch):
    monkeypatch.setattr(extension, "why_missing", lambda: "the C++ extension is missing")
    model = TreeModel(tiny("Llama"), "tiny", "fast", "torch")
    assert model.writing_path == "layer by layer: a layer has parts that the kernels do not compute"
