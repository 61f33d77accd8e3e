"""Quantised checkpoints: their layers run as their library wrote them, inside a float32 pass."""

import copy
import json
import logging

import numpy as np
import pytest
import torch
from helpers.registry import PATTERNS, tiny_model
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama
from test_multimodal import qwen2_5_vl, weighty
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    QuantoConfig,
    TorchAoConfig,
)

from fastreader import Reader
from fastreader.errors import InputError, UnsupportedModelError
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.models.rewriting import quantised
from fastreader.models.rewriting.quantised import OwnLinear, is_own, is_plain

SEQUENCES = random_sequences(np.random.default_rng(1), 261)
# Library, config, and whether its layers round their inputs, which makes much of float32's last bits.
KINDS = {
    "torchao int8": ("torchao", lambda: torchao("Int8WeightOnlyConfig"), False),
    "torchao intx": ("torchao", lambda: torchao("IntxWeightOnlyConfig"), False),
    "torchao float8": ("torchao", lambda: torchao("Float8WeightOnlyConfig"), False),
    "torchao int8, inputs too": ("torchao", lambda: torchao("Int8DynamicActivationInt8WeightConfig"), True),
    "torchao intx, inputs too": ("torchao", lambda: torchao("Int8DynamicActivationIntxWeightConfig"), True),
    "quanto int8": ("optimum.quanto", lambda: QuantoConfig(weights="int8"), False),
    "bitsandbytes nf4": (
        "bitsandbytes",
        lambda: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32),
        True,
    ),
    "bitsandbytes fp4": ("bitsandbytes", lambda: BitsAndBytesConfig(load_in_4bit=True), True),
    "bitsandbytes int8": (
        "bitsandbytes",
        lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0),
        True,
    ),
}


def torchao(name):
    import torchao.quantization

    return TorchAoConfig(getattr(torchao.quantization, name)())


def source(**overrides):
    return tiny_llama(hidden_size=128, intermediate_size=256, attention_bias=True, **overrides)


@pytest.fixture
def base(tmp_path):
    source().save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def quantise(base, kind, dtype):
    library, config, _ = KINDS[kind]
    pytest.importorskip(library, reason=f"{library} is not installed; install the extra quantised")
    return AutoModelForCausalLM.from_pretrained(base, quantization_config=config(), dtype=dtype).eval()


def scores(reader):
    return np.concatenate(reader.score(SEQUENCES).token_logprobs)


def test_text_of_a_quantised_model_that_also_sees(tmp_path):
    """Neither a model in memory nor its folder has an encoder left. The folder's encoder is not read."""
    pytest.importorskip("torchao", reason="torchao is not installed; install the extra quantised")
    for folder in (tmp_path / "plain", tmp_path / "quantised"):
        byte_tokenizer().save_pretrained(folder)
    weighty(qwen2_5_vl).save_pretrained(tmp_path / "plain")
    whole = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "plain", quantization_config=torchao("Int8WeightOnlyConfig"), dtype=torch.float32
    ).eval()
    whole.save_pretrained(tmp_path / "quantised")
    want = np.concatenate(one_by_one(whole, SEQUENCES))
    for given in ((whole, byte_tokenizer()), tmp_path / "quantised"):
        reader = Reader.load(given, device="cpu", precision="exact")
        assert "21 quantised linear" in reader.describe()["forward"]
        np.testing.assert_allclose(scores(reader), want, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_transformers_one_by_one(base, kind):
    """In float32, where everything except the quantised layers is exact."""
    model = quantise(base, kind, torch.float32)
    want = np.concatenate(one_by_one(model, SEQUENCES))
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    away = np.abs(scores(reader) - want)
    rounds = KINDS[kind][2]
    # A rounded input now and then falls on the other side: one step of its scale, in one of the layer's inputs.
    assert away.max() < (0.3 if rounds else 1e-4) and np.median(away) < (0.06 if rounds else 1e-5)
    description = reader.describe()
    assert "14 quantised linear (" in description["forward"] and description["dtype"] not in ("float32", "bfloat16")


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_does_not_depend_on_the_other_sequences(base, kind):
    reader = Reader.load((quantise(base, kind, torch.float32), byte_tokenizer()), precision="exact")
    alone = np.concatenate([np.concatenate(reader.score([pair]).token_logprobs) for pair in SEQUENCES])
    away = np.abs(scores(reader) - alone)
    assert np.median(away) < 1e-5 and away.max() < (0.3 if KINDS[kind][2] else 1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "quanto" not in kind])  # transformers cannot save those
def test_a_saved_checkpoint_loads(base, kind, tmp_path):
    quantise(base, kind, torch.bfloat16).save_pretrained(tmp_path / "saved")
    byte_tokenizer().save_pretrained(tmp_path / "saved")
    reader = Reader.load(tmp_path / "saved", device="cpu")
    given = Reader.load((quantise(base, kind, torch.bfloat16), byte_tokenizer()))
    np.testing.assert_array_equal(scores(reader), scores(given))
    assert reader.revision and reader.describe()["dtype"] == given.describe()["dtype"]
    with pytest.raises(InputError, match=r"dtype: expected 'auto' or torch\.bfloat16, since its weights are quantised"):
        Reader.load((quantise(base, kind, torch.bfloat16), byte_tokenizer()), dtype="float32")


def test_a_model_quantised_in_place_runs(base):
    quantization = pytest.importorskip("torchao.quantization", reason="install the extra quantised")
    model = source()
    quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert "quantised linear (Int8Tensor)" in reader.describe()["forward"]
    np.testing.assert_allclose(scores(reader), np.concatenate(one_by_one(model, SEQUENCES)), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_hybrid_runs():
    quantization = pytest.importorskip("torchao.quantization", reason="install the extra quantised")
    model = tiny_model("qwen3_5_text", PATTERNS["qwen3_5_text"][0])
    quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert "quantised linear (Int8Tensor)" in reader.describe()["forward"]
    np.testing.assert_allclose(scores(reader), np.concatenate(one_by_one(model, SEQUENCES)), atol=1e-4)


def test_int8_with_an_outlier_threshold_is_rejected(base):
    """Which columns are outliers depends on all tokens of a call."""
    pytest.importorskip("bitsandbytes", reason="install the extra quantised")
    config = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config, dtype=torch.float32)
    with pytest.raises(UnsupportedModelError, match=r"with others in its call.*\(not with llm_int8_threshold=0\.0\)"):
        Reader.load((model, byte_tokenizer()))


def compressed(folder, kind, strategy):
    """Write a checkpoint as compressed-tensors does: 8-bit weights, and inputs with a scale a token or a call."""
    from safetensors.torch import load_file, save_file

    most, dtype = (127, torch.int8) if kind == "int" else (448, torch.float8_e4m3fn)
    weights = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[name] = weight
        if name.endswith("proj.weight"):
            scale = weight.abs().amax(1, keepdim=True) / most
            rows = weight / scale
            weights[name] = (rows.round() if kind == "int" else rows).to(dtype)
            weights[f"{name}_scale"] = scale
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    common = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": strategy, "dynamic": True},
    }
    scheme = {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": scheme}))


@pytest.mark.parametrize("kind", ["int", "float"])
def test_w8a8_with_a_scale_a_token_runs(base, kind):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed; install the extra quantised")
    compressed(base, kind, "token")
    want = np.concatenate(one_by_one(AutoModelForCausalLM.from_pretrained(base), SEQUENCES))
    reader = Reader.load(base, device="cpu", precision="exact")
    away = np.abs(scores(reader) - want)
    assert away.max() < 0.3 and np.median(away) < 0.06
    assert reader.describe()["dtype"] == "compressed-tensors"
    alone = np.concatenate([np.concatenate(reader.score([pair]).token_logprobs) for pair in SEQUENCES])
    assert np.median(np.abs(scores(reader) - alone)) < 1e-5


def rounded_weights(folder, kind):
    """Write a checkpoint of narrow weights whose layers do not round their inputs."""
    from safetensors.torch import load_file, save_file

    weights, most = {}, {"int4": 7, "int8": 127}.get(kind, 448)
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            weights[name] = weight
        elif kind.startswith("int"):  # groups of 32, packed in int32
            from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

            groups = weight.unflatten(1, (-1, 32))
            scale = groups.abs().amax(-1) / most
            rows = (groups / scale[..., None]).round().to(torch.int8).flatten(1)
            weights[f"{name}_packed"] = pack_to_int32(rows, int(kind[3:]))
            weights |= {f"{name}_scale": scale, f"{name}_shape": torch.tensor(weight.shape)}
        elif kind == "float8":
            scale = weight.abs().amax(1, keepdim=True) / most
            weights |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
        else:  # fine-grained: blocks of 128 x 128
            blocks = nn.functional.pad(weight, (0, -weight.shape[1] % 128, 0, -weight.shape[0] % 128))
            blocks = blocks.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
            scale = blocks.abs().amax((1, 3), keepdim=True) / most
            rows = (blocks / scale).flatten(2).flatten(0, 1)[: weight.shape[0], : weight.shape[1]]
            weights |= {name: rows.contiguous().to(torch.float8_e4m3fn), f"{name}_scale_inv": scale[:, 0, :, 0]}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    bits = {"num_bits": int(kind[3:]) if kind.startswith("int") else 8, "symmetric": True, "dynamic": False}
    how = {"type": "int", "strategy": "group", "group_size": 32} if kind.startswith("int") else {"type": "float"}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized" if kind.startswith("int") else "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"strategy": "channel", **bits, **how}}},
        "ignore": ["lm_head"],
    }
    if kind == "fine":
        scheme = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": scheme}))


@pytest.mark.parametrize("kind", ["int4", "int8", "float8", "fine"])
def test_checkpoints_of_narrow_weights(base, kind):
    """The first three stay layers of their library. Transformers converts fine-grained FP8 on a CPU itself."""
    if kind != "fine":
        pytest.importorskip("compressed_tensors", reason="install the extra quantised")
    rounded_weights(base, kind)
    want = np.concatenate(one_by_one(AutoModelForCausalLM.from_pretrained(base).eval(), SEQUENCES))
    reader = Reader.load(base, device="cpu", precision="exact")
    np.testing.assert_allclose(scores(reader), want, atol=1e-4)
    alone = np.concatenate([np.concatenate(reader.score([pair]).token_logprobs) for pair in SEQUENCES])
    np.testing.assert_allclose(scores(reader), alone, atol=1e-4)
    plain = np.concatenate(one_by_one(source(), SEQUENCES))
    assert np.abs(want - plain).max() > 1e-3  # the weights are rounded
    assert ("quantised linear" in reader.describe()["forward"]) == (kind != "fine")


@pytest.mark.parametrize("kind", ["int", "float"])
def test_w8a8_with_a_scale_a_call_is_rejected(base, kind):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed; install the extra quantised")
    compressed(base, kind, "tensor")
    with pytest.raises(UnsupportedModelError, match="with others in its call"):
        Reader.load(base, device="cpu")


def test_weights_that_a_library_keeps_elsewhere_are_rejected(base):
    """Writing to such a module writes to the weights of all that share them."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed; install the extra quantised")
    compressed(base, "int", "token")
    model = AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(UnsupportedModelError, match="keeps its weights in a CPUCache"):
        Reader.load((model, byte_tokenizer()))


class Quantised(nn.Linear):
    """A layer with other products: 8 bits of weights, with a float32 scale a row."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((layer.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = layer.bias

    def forward(self, input):
        return nn.functional.linear(input, self.weight.to(input.dtype) * self.scale.to(input.dtype), self.bias)


class OneScale(Quantised):
    """Inputs rounded by one scale for all tokens of a call."""

    def forward(self, input):
        scale = input.abs().max() / 127
        return super().forward((input / scale).round() * scale)


class RoundedInputs(Quantised):
    """Inputs rounded by a scale a token, as W8A8 layers do."""

    bits = 8

    def forward(self, input):
        step = input.abs().amax(-1, keepdim=True) / (2 ** (self.bits - 1) - 1)
        return super().forward((input / step).round() * step)


def library(kind, model=None):
    """A model as a library would leave it: linear layers replaced, the head kept."""
    model = model or source()
    for name, module in list(model.model.named_modules()):
        if type(module) is nn.Linear:
            model.model.set_submodule(name, kind(module))
    model.is_quantized = True
    model.config.quantization_config = {"quant_method": "made here"}
    return model


def test_layers_of_any_library_run():
    model = library(Quantised)
    want = np.concatenate(one_by_one(model, SEQUENCES))
    before = {name: (id(module), module.training) for name, module in model.named_modules()}
    for precision in ("exact", "high"):
        reader = Reader.load((model, byte_tokenizer()), precision=precision)
        np.testing.assert_allclose(scores(reader), want, atol=1e-4 if precision == "exact" else 5e-3)
        assert reader.describe()["dtype"] == "made here"
    assert before == {name: (id(module), module.training) for name, module in model.named_modules()}
    layers = [part.own[0] for part in reader.model.modules() if isinstance(part, OwnLinear)]
    assert layers == [module for module in model.model.modules() if isinstance(module, Quantised)]  # shared, not copied


class ChangedBySaving(Quantised):
    """Scales that the library's own code for saving leaves in another order, as bitsandbytes does with 4-bit layers."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        self.scale.data = self.scale.data.flip(0)
        super()._save_to_state_dict(destination, prefix, keep_vars)


def test_loading_changes_no_layer_that_saving_changes():
    model = library(ChangedBySaving)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    want = np.concatenate(one_by_one(model, SEQUENCES))
    first = Reader.load((model, byte_tokenizer()), precision="exact")
    second = Reader.load((model, byte_tokenizer()), precision="exact")
    np.testing.assert_allclose(scores(first), want, atol=1e-4)
    assert first.revision == second.revision
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())
    model.model.layers[0].mlp.up_proj.scale.data *= 2  # what only the layer saves is part of the revision
    assert Reader.load((model, byte_tokenizer())).revision != first.revision


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_leaves_the_model_as_it_was(base, kind):
    """Before and after a load, with one row and several, the model's own modules give the same."""
    model = quantise(base, kind, torch.float32)
    rows = torch.randint(0, 256, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = [model(rows).logits, model(rows[:, :1]).logits]
        readers = [Reader.load((model, byte_tokenizer())) for _ in range(2)]
        after = [model(rows).logits, model(rows[:, :1]).logits]
    assert readers[0].revision == readers[1].revision
    for first, second in zip(before, after, strict=True):
        torch.testing.assert_close(second, first, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bits", [4, 6, 8, 10])
def test_rounded_inputs_differ_by_less_than_their_rounding(bits, monkeypatch):
    """An input on the other side of a boundary moves by one step, where rounding moves all by up to half of one.

    So the packed pass is nearer to the layers' own modules than these are to the same layers without the rounding:
    on average by a factor of two at least, and in the largest of all differences.
    """
    monkeypatch.setattr(RoundedInputs, "bits", bits)
    model, away, rounding = library(RoundedInputs), [], []
    smooth = library(Quantised)  # the same weights
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    for seed in range(4):
        sequences = random_sequences(np.random.default_rng(seed), 261)
        own = np.concatenate(one_by_one(model, sequences))
        away.append(np.abs(np.concatenate(reader.score(sequences).token_logprobs) - own))
        rounding.append(np.abs(np.concatenate(one_by_one(smooth, sequences)) - own))
    away, rounding = np.concatenate(away), np.concatenate(rounding)
    assert rounding.max() > 0.01  # or the layers would not be of this kind
    assert away.max() < rounding.max() and away.mean() < rounding.mean() / 2


def test_a_scale_that_all_tokens_share_is_rejected():
    for check in ("full", "off"):
        with pytest.raises(UnsupportedModelError, match=r"q_proj \(OneScale\) gives a token another result"):
            Reader.load((library(OneScale), byte_tokenizer()), check=check)


def test_a_quantised_head_is_rejected():
    model = library(Quantised)
    model.set_output_embeddings(Quantised(model.lm_head))
    with pytest.raises(UnsupportedModelError, match="its LM head is quantised by made here"):
        Reader.load((model, byte_tokenizer()))


def test_experts_run_unless_they_are_quantised():
    from helpers.families import tiny

    model = library(Quantised, tiny("Mixtral"))
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    np.testing.assert_allclose(scores(reader), np.concatenate(one_by_one(model, SEQUENCES)), atol=1e-4)
    assert "mixture of experts" in reader.describe()["forward"]
    experts = model.model.layers[1].mlp.experts
    experts.down_proj = nn.Parameter(experts.down_proj.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(UnsupportedModelError, match=r"outside a linear layer: layers\.1\.mlp\.experts\.down_proj"):
        Reader.load((model, byte_tokenizer()))


def test_quantised_layers_beside_other_weights_are_rejected():
    from helpers.families import tiny

    model = library(Quantised, tiny("OPT"))
    model.model.decoder.layers[0].register_parameter("extra", nn.Parameter(torch.ones(2, 2)))
    with pytest.raises(UnsupportedModelError, match=r"together with quantised layers.*extra"):
        Reader.load((model, byte_tokenizer()))


def test_no_adapter_is_merged_into_quantised_weights():
    peft = pytest.importorskip("peft")
    model = library(Quantised)
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["lm_head"]))
    with pytest.raises(UnsupportedModelError, match="cannot be merged into quantised weights"):
        Reader.load((model, byte_tokenizer()))


def test_deterministic_is_not_promised():
    with pytest.raises(UnsupportedModelError, match="deterministic=True is not possible: quantised layers"):
        Reader.load((library(Quantised), byte_tokenizer()), deterministic=True)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
        {"quant_method": "fbgemm_fp8"},
        {"quant_method": "hqq"},
    ],
)
def test_what_a_type_needs_is_named(base, config):
    """None of these packages or devices is here."""
    file = base / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": config}))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    message = r"its quantised weights cannot be loaded here: .*(GPU|install|available|optimum|gptq|hqq|kernels)"
    with pytest.raises(UnsupportedModelError, match=f"(?i){message}"):
        load(LoadOptions(base, "cpu", "auto", "fast"))


def test_which_layers_are_plain():
    plain = nn.Linear(4, 4)
    assert is_plain(plain) and not is_own(plain) and not is_own(nn.LayerNorm(4))
    assert is_own(Quantised(plain)) and not is_plain(Quantised(plain))
    wrapped = copy.deepcopy(plain)
    wrapped.forward = lambda rows: rows  # compressed-tensors does so
    assert is_own(wrapped)
    narrow = copy.deepcopy(plain)
    narrow.weight = nn.Parameter(plain.weight.to(torch.float8_e4m3fn), requires_grad=False)
    assert is_own(narrow)


@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("mutant", ["negated", "a row late", "another layer's", "another scale", "norm"])
def test_a_wrong_pass_is_rejected(mutant, precision, monkeypatch):
    def spoil(model):
        first, second = [part for part in model.modules() if isinstance(part, OwnLinear)][1:3]
        forward = OwnLinear.forward
        if mutant == "negated":
            first.forward = lambda rows: -forward(first, rows)
        elif mutant == "a row late":
            first.forward = lambda rows: forward(first, rows.roll(1, -2))
        elif mutant == "another scale":  # a plain layer of the weights, each row with the scale of the next
            layer = first.own[0]
            plain = nn.Linear(layer.in_features, layer.out_features)
            plain.weight = nn.Parameter(layer.weight.float() * layer.scale.roll(1, 0), requires_grad=False)
            plain.bias = layer.bias
            first.own = (plain,)
        elif mutant == "another layer's":
            first.forward = lambda rows: forward(second, rows)
        else:
            norm = model.model.layers[1].input_layernorm
            norm.weight = nn.Parameter(norm.weight.detach() + 0.01 * torch.arange(128) / 128)

    made = quantised.check_independent
    monkeypatch.setattr(quantised, "check_independent", lambda model, name: (made(model, name), spoil(model)))
    model = library(Quantised)
    with pytest.raises(UnsupportedModelError, match="differ"):
        Reader.load((model, byte_tokenizer()), precision=precision)
