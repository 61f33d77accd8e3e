"""Fused modules replace transformers' own only if they give the same numbers."""

from collections import Counter

import pytest
import torch
from helpers.support import byte_tokenizer
from test_architectures import tiny
from torch import nn
from transformers.models.llama import modeling_llama

from fastreader import Reader
from fastreader.models.passes.packed_keys import TreeKeys
from fastreader.models.rewriting.fused import FusedAttention, FusedFeedForward, FusedLayer, FusedNorm, match
from fastreader.ops.pointwise.reference import spread

LAYERS = 3
# family: fused layers, and attention, feed-forward and norm modules in three layers
FUSED = {
    "Llama": (3, 3, 3, 7),
    "Llama, biases": (3, 3, 3, 7),
    "Qwen2": (3, 3, 3, 7),
    "Qwen3": (3, 3, 3, 13),
    "Mistral, window": (3, 3, 3, 7),
    "Gemma2, window, caps": (3, 3, 3, 13),
    "Gemma3, window": (3, 3, 3, 19),
    "Phi3, window": (3, 3, 3, 7),
    "Granite": (3, 3, 3, 7),
    "Olmo2": (3, 3, 3, 13),
    "SmolLM3": (3, 3, 3, 7),
    "Cohere2, window": (0, 1, 3, 0),  # its rotary embedding rotates neighbouring pairs, and it has layer norms
    "GPTNeoX": (0, 0, 0, 0),
    "Olmo, clip": (0, 0, 3, 0),  # only large values show its clip
    "Ministral3, scaled queries": (0, 0, 3, 7),  # only far positions show it
}


def counts(reader):
    found = Counter(type(m) for m in reader.local_model.model.model.modules())
    return tuple(found[kind] for kind in (FusedLayer, FusedAttention, FusedFeedForward, FusedNorm))


@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("family", FUSED)
@pytest.mark.long(keep=15)
def test_the_common_families_run_fused(family, precision):
    reader = Reader.load((tiny(family), byte_tokenizer()), precision=precision)
    assert counts(reader) == FUSED[family]
    assert ("fused" in reader.describe()["forward"]) == any(FUSED[family])


@pytest.mark.parametrize("family", ["Llama", "SmolLM3", "GPTNeoX", "Cohere2, window"])
def test_rounded_queries_and_keys_are_multiplied_by_a_hadamard_matrix(family, monkeypatch):
    model, seen, attend = tiny(family), [], TreeKeys.attend

    def recorded(self, layer, query, key, value, params):
        seen.append((query, key, value))
        return attend(self, layer, query, key, value, params)

    monkeypatch.setattr(TreeKeys, "attend", recorded)
    for how in ({"precision": "fast", "products": "bf16"}, {"precision": "exact"}):
        reader = Reader.load((model, byte_tokenizer()), **how)
        seen.clear()
        reader.score([(list(range(20)), [3, 4])])
        if how["precision"] == "fast":
            rounded = seen[:LAYERS]
    for found, exact in zip(rounded, seen, strict=True):
        assert {states.dtype for states in found} == {torch.bfloat16}
        for kind, got, want in zip(("query", "key", "value"), found, exact, strict=True):
            want = want if kind == "value" else spread(want)
            assert (got.float() - want).norm() < 0.05 * want.norm(), kind


class Scaled(modeling_llama.LlamaAttention):
    def forward(self, hidden_states, **named):
        out, weights = super().forward(hidden_states, **named)
        return out * 1.5, weights


class Swapped(modeling_llama.LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


class ShiftedRMSNorm(modeling_llama.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) + 0.01


@pytest.mark.parametrize(
    ("where", "kind", "left"),
    [
        ("self_attn", Scaled, (2, 2, 3, 7)),
        ("mlp", Swapped, (2, 3, 2, 7)),
        ("input_layernorm", ShiftedRMSNorm, (3, 3, 3, 6)),
    ],
)
def test_a_module_that_computes_something_else_keeps_its_own_code(where, kind, left):
    model = tiny("Llama")
    layer = model.model.layers[1]
    getattr(layer, where).__class__ = kind
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert counts(reader) == left
    assert_equals_own_forward(reader, model)


def assert_equals_own_forward(reader, model):
    text = torch.arange(12)[None] + 40
    with torch.no_grad():
        own = model(text).logits[0, :-1].log_softmax(-1).gather(1, text[0, 1:, None]).sum()
    tokens = text[0].tolist()
    assert abs(reader.loglikelihood([(tokens[:1], tokens[1:])])[0].logprob - float(own)) < 1e-3


class Halved(modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states, **named):
        return (hidden_states + super().forward(hidden_states, **named)) / 2


def test_a_layer_that_computes_something_else_keeps_its_own_code():
    model = tiny("Llama")
    model.model.layers[1].__class__ = Halved
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert counts(reader) == (2, 3, 3, 7)
    assert_equals_own_forward(reader, model)


class Remembering(modeling_llama.LlamaModel):
    """Adds its embeddings to its output. Layers that overwrite the embeddings would change the output."""

    def forward(self, input_ids=None, position_ids=None, **named):
        embedded = self.embed_tokens(input_ids)
        named.pop("inputs_embeds", None)
        out = super().forward(inputs_embeds=embedded, position_ids=position_ids, **named)
        out.last_hidden_state = out.last_hidden_state + embedded
        return out


def test_a_model_that_reuses_an_earlier_state_keeps_its_layers():
    model = tiny("Llama")
    model.model.__class__ = Remembering
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert counts(reader) == (0, 3, 3, 7)
    assert_equals_own_forward(reader, model)


def test_a_borrowed_model_keeps_its_modules():
    model = tiny("Llama", attention_bias=True)
    before = {name: type(module) for name, module in model.named_modules()}
    Reader.load((model, byte_tokenizer()), precision="fast")
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert isinstance(model.model.layers[0].self_attn.q_proj, nn.Linear)


class SwappedByNumber(modeling_llama.LlamaMLP):
    """Computes something else in the last layer, by a number that all layers have as `layer_idx`."""

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(self.act_fn(up) * gate if self.layer_idx == LAYERS - 1 else self.act_fn(gate) * up)


class HalvedByNumber(modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states, **named):
        out = super().forward(hidden_states, **named)
        return (hidden_states + out) / 2 if self.self_attn.layer_idx == LAYERS - 1 else out


def test_layers_of_one_structure_are_tried_once(monkeypatch):
    tried = []
    for name in ("_same_layer", "_projects_alike"):
        original = getattr(match, name)
        monkeypatch.setattr(match, name, lambda *a, own=original, name=name: tried.append(name) or own(*a))
    reader = Reader.load((tiny("Llama"), byte_tokenizer()), precision="exact")
    assert counts(reader) == FUSED["Llama"]
    assert tried.count("_same_layer") == 1
    assert tried.count("_projects_alike") <= 5  # three inputs, and one for each other way to rotate


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize(("kind", "left"), [(SwappedByNumber, (2, 3, 2, 7)), (HalvedByNumber, (2, 3, 3, 7))])
def test_a_layer_that_differs_by_its_number_alone_keeps_its_own_code(kind, left, precision):
    model = tiny("Llama")
    for number, layer in enumerate(model.model.layers):
        changed = layer.mlp if kind is SwappedByNumber else layer
        changed.__class__ = kind
        changed.layer_idx = number
    reader = Reader.load((model, byte_tokenizer()), precision=precision)
    assert counts(reader) == left
    if precision == "exact":
        assert_equals_own_forward(reader, model)


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_a_layer_of_zeros_decides_nothing_for_the_others(activation):
    """Models are extended by layers whose outputs are zero, with which every activation agrees."""
    model = tiny("Llama", hidden_act=activation)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.layers[0].self_attn.o_proj.weight.zero_()
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert counts(reader) == FUSED["Llama"]
    assert {layer.mlp.activation for layer in reader.local_model.model.model.base_model.layers[1:]} == {
        {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}[activation]
    }
    assert_equals_own_forward(reader, model)
