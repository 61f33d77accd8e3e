"""Experts of GGUF files, whose stacked matrices keep their integers, against the same files' values in float32."""

import tracemalloc

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
from fastreader.ops.linear import BlockStack, BlockWeight, mxfp4

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


def test_mxfp4_has_all_its_values():
    from gguf import GGMLQuantizationType, quants

    codes = np.arange(256, dtype=np.uint8)  # every pair of codes
    for exponent in (104, 120, 127, 143):
        rows = np.concatenate([np.full((16, 1), exponent, np.uint8), codes.reshape(16, 16)], axis=1)
        wanted = quants.dequantize(rows, GGMLQuantizationType.MXFP4)
        got = BlockWeight.pack(torch.from_numpy(rows), "MXFP4", 32).values()
        np.testing.assert_array_equal(got.numpy(), wanted)
    zeros = torch.zeros(4, 17, dtype=torch.uint8)
    assert not BlockWeight.pack(zeros, "MXFP4", 32).values().any()
    for exponent in (1, 103, 144, 254):
        rows = torch.tensor([[exponent, *range(16)]], dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="scale of MXFP4"):
            BlockWeight.pack(rows, "MXFP4", 32)
        wanted = quants.dequantize(rows.numpy(), GGMLQuantizationType.MXFP4)
        np.testing.assert_array_equal(mxfp4.values(rows).numpy(), wanted)


@pytest.mark.parametrize("architecture", ["qwen3moe", "gpt-oss"])
def test_scales_beyond_float16_leave_values(file_of, architecture, monkeypatch):
    def far(values, kind):
        rows = np.zeros((*values.shape[:-1], values.shape[-1] // 32, 17), np.uint8)
        rows[..., 0], rows[..., 1:] = 90, 0x21
        return rows.reshape(*values.shape[:-1], -1)

    from gguf import quants

    quantize = quants.quantize
    monkeypatch.setattr(quants, "quantize", lambda v, k: far(v, k) if k.name == "MXFP4" else quantize(v, k))
    file = file_of(architecture, of_kinds("MXFP4", "MXFP4", "MXFP4"))
    own = load(LoadOptions(file, "cpu", "file", "exact")).model
    plain = load(LoadOptions(file, "cpu", "float32", "exact")).model
    for name, part in own.named_parameters():
        assert not isinstance(part, BlockStack), name
        values = part.plain() if hasattr(part, "plain") else part
        assert torch.equal(values, plain.get_parameter(name)), name


@pytest.mark.parametrize("function", [mxfp4.fits_q5_0, mxfp4.as_q5_0])
def test_mxfp4_is_laid_out_in_little_memory(function):
    """An expert's matrix has tens of millions of values."""
    rows = torch.randint(0, 256, (512, 17 * 64), dtype=torch.uint8)
    rows[:, ::17] = 120
    tracemalloc.start()
    function(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 4 * 512 * 64 * 32  # bytes; the values have half a byte each
