"""Experts of GGUF files, whose stacked matrices keep their integers, against the same files' values in float32."""

import numpy as np
import pytest
import torch
from helpers.gguf_files import keys_of, tensors_of, tiny, write
from test_gguf_facts import DEFAULTS, MODEL_TYPES, STATED, rope
from test_gguf_weights import PAIRS, alone

from fastreader import Reader
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.ops import extension
from fastreader.ops.linear import BlockStack, BlockWeight

pytest.importorskip("gguf", reason="needs the extra gguf")
pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


@pytest.fixture
def file_of(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))

    def make(architecture, kinds):
        sizes = {**SIZES, "moe_intermediate_size": 96} if architecture == "qwen3moe" else SIZES
        fields = {**DEFAULTS[architecture], **sizes}
        model = tiny(MODEL_TYPES[architecture], rope_parameters=rope(architecture), **fields)
        name = "llama" if architecture == "mixtral" else architecture
        stated = {**STATED[architecture], "attention.key_length": 16, "attention.value_length": 16}
        if architecture == "qwen3moe":
            stated["expert_feed_forward_length"] = 96
        if architecture == "mixtral":
            stated = {**STATED[architecture], "rope.dimension_count": 16}
        tensors = tensors_of(name, model)
        return write(tmp_path / "made.gguf", name, tensors, {**keys_of(name, model.config), **stated}, kinds)

    return make


def of_kinds(gate, up, down):
    """Return the types of tensors by their names: of experts as given, of other matrices Q8_0."""
    kinds = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
    return lambda name: next((kind for part, kind in kinds.items() if part in name), "Q8_0")


@pytest.mark.parametrize("architecture", ["qwen3moe", "mixtral", "gpt-oss"])
@pytest.mark.parametrize(
    ("kinds", "kept"),
    [(("Q4_0",) * 3, True), (("MXFP4",) * 3, True), (("Q5_1", "Q5_1", "Q8_0"), True), (("Q4_0", "Q8_0", "Q5_0"), None)],
)
@pytest.mark.long(keep=3)
def test_experts_keep_the_integers_of_their_file(file_of, architecture, kinds, kept):
    file = file_of(architecture, of_kinds(*kinds))
    own = load(LoadOptions(file, "cpu", "file", "exact")).model
    plain = load(LoadOptions(file, "cpu", "float32", "exact")).model
    stacks = {name: part for name, part in own.named_parameters() if isinstance(part, BlockStack)}
    whole = {name for name, part in plain.named_parameters() if part.dim() == 3}
    # Rows of gates and values that alternate cannot have two types.
    kept = architecture != "gpt-oss" if kept is None else kept
    assert whole and stacks.keys() == {name for name in whole if kept or "down" in name}
    for name, part in own.named_parameters():
        wanted = plain.get_parameter(name)
        assert part.shape == wanted.shape, name
        assert torch.equal(part.plain() if hasattr(part, "plain") else part, wanted), name
    # In bfloat16 a router of random weights may choose other experts: there the check at load compares layers.
    for precision, bound in (("exact", 1e-4), ("high", 1e-3), ("fast", np.inf)):
        reader = Reader.load(file, "cpu", "file", precision, check="full")
        for pair, ours in zip(PAIRS, reader.loglikelihood(PAIRS), strict=True):
            assert abs(ours.logprob - alone(plain, *pair)) <= bound
    assert set(reader.describe()["dtype"].split(" + ")) >= {kind for kind in kinds if kept}


def test_experts_take_the_memory_of_their_file(file_of):
    file = file_of("qwen3moe", of_kinds("Q4_0", "Q4_0", "Q4_0"))
    own = load(LoadOptions(file, "cpu", "file", "exact")).model
    stacks = [part for part in own.parameters() if isinstance(part, BlockStack)]
    held = sum(part.weight.data.numel() for stack in stacks for part in stack.parts)
    assert held <= 1.3 * sum(stack.numel() for stack in stacks) * 18 / 32


@pytest.mark.parametrize("architecture", ["qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("check", ["quick", "full"])
def test_no_load_unpacks_all_experts_of_a_layer(file_of, architecture, check, monkeypatch):
    """They take several gigabytes in float32."""
    file = file_of(architecture, of_kinds("Q4_0", "Q4_0", "Q8_0"))
    monkeypatch.setattr(BlockStack, "plain", lambda stack: pytest.fail("all experts unpacked"))
    reader = Reader.load(file, "cpu", check=check)
    assert reader.checked is not None and "3 attention" in reader.describe()["forward"]


def test_mxfp4_has_all_its_values():
    from gguf import GGMLQuantizationType, quants

    codes = np.arange(256, dtype=np.uint8)  # every pair of codes
    for exponent in range(256):
        rows = np.concatenate([np.full((16, 1), exponent, np.uint8), codes.reshape(16, 16)], axis=1)
        with np.errstate(over="ignore"):
            wanted = quants.dequantize(rows, GGMLQuantizationType.MXFP4)
        got = BlockWeight.pack(torch.from_numpy(rows), "MXFP4", 32).values()
        np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("architecture", ["qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("exponent", [90, 145])  # beyond float16's range
def test_scales_of_mxfp4_are_kept(file_of, architecture, exponent, monkeypatch):
    def far(values, kind):
        rows = np.zeros((*values.shape[:-1], values.shape[-1] // 32, 17), np.uint8)
        rows[..., 0], rows[..., 1:] = exponent, 0x21
        return rows.reshape(*values.shape[:-1], -1)

    from gguf import quants

    quantize = quants.quantize
    monkeypatch.setattr(quants, "quantize", lambda v, k: far(v, k) if k.name == "MXFP4" else quantize(v, k))
    file = file_of(architecture, of_kinds("MXFP4", "MXFP4", "MXFP4"))
    own = load(LoadOptions(file, "cpu", "file", "exact")).model
    plain = load(LoadOptions(file, "cpu", "float32", "exact")).model
    stacks = [name for name, part in own.named_parameters() if isinstance(part, BlockStack)]
    assert stacks
    for name in stacks:
        assert own.get_parameter(name).plain().any()
        assert torch.equal(own.get_parameter(name).plain(), plain.get_parameter(name)), name
