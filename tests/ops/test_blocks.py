"""Weights that keep the integers of a GGUF file, against the gguf package's own dequantisation."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fastreader.errors import InputError
from fastreader.models.machine.arithmetic import ways
from fastreader.ops import extension
from fastreader.ops.linear import (
    BlockTensor,
    BlockWeight,
    blocks,
    linear,
    linear_add,
    linear_gated,
    prepare,
    torch_impl,
)
from fastreader.ops.linear.blocks import FORMATS, can_join, join
from fastreader.ops.linear.reference import linear_reference
from fastreader.ops.linear_logprob import chunked, linear_logprob_stats

pytest.importorskip("gguf", reason="needs the extra gguf")
pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
INSTRUCTION_SETS = [] if extension.why_missing() else extension.instruction_sets()
EXACT = ("avx512_bf16",)  # whose bf16 products take the file's integers as they are


def file_rows(name, width, depth, seed=0):
    """Random rows as a file holds them, with scales as models have them, and their values by the gguf package."""
    from gguf import GGMLQuantizationType, quants

    rng = np.random.default_rng(seed)
    values, bytes_ = FORMATS[name]
    blocks = rng.integers(0, 256, (width, depth // values, bytes_), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, :, 0] = rng.integers(118, 121, blocks.shape[:2])
    two = [0, 2] if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else [0]
    halves = {"MXFP4": [], "Q6_K": [208], "Q3_K": [108]}.get(name, two)
    for at in halves:
        scales = rng.uniform(-0.02, 0.02, blocks.shape[:2]).astype(np.float16)
        scales[rng.random(scales.shape) < 0.05] = np.float16(3e-6)  # below the normal halves
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    rows = blocks.reshape(width, -1)
    return torch.from_numpy(rows), torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType[name]))


def packed(name, width, depth, seed=0):
    rows, values = file_rows(name, width, depth, seed)
    return BlockWeight.pack(rows, name, depth), values


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("width", [1, 32, 45, 130])
def test_values_are_those_of_the_file_bit_for_bit(name, width):
    weight, values = packed(name, width, 512)
    assert torch.equal(weight.values(), values)
    assert torch.equal(weight.values(width // 3, width // 2), values[width // 3 :][: width // 2])
    ids = torch.randint(0, width, (3, 7))
    assert torch.equal(weight.rows(ids), values[ids])


@pytest.mark.parametrize("name", FORMATS)
def test_it_takes_the_memory_of_the_file(name):
    rows, _ = file_rows(name, 64, 768)
    # scales of MXFP4 with two bytes, three bits of Q3_K as four, and the scales of IQ4_XS twice
    laid = rows.numel() * {"MXFP4": 18 / 17, "Q3_K": 146 / 110, "IQ4_XS": 146 / 136}.get(name, 1)
    assert BlockWeight.pack(rows, name, 768).data.numel() <= 1.04 * laid + 64


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", FORMATS)
def test_products_in_float32_and_bf16x3_are_those_of_the_values(name, isa, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    weight, values = packed(name, 100, 768)
    for rows in (1, 2, 3, 9, 33, 200, 1100):
        inputs = torch.randn(rows, 768, generator=torch.Generator().manual_seed(rows))
        for precision in ("bf16x3", "float32", *([] if isa in EXACT else ["bf16"])):
            ours = linear(inputs, prepare(BlockTensor(weight), precision), precision=precision)
            assert torch.equal(ours, linear(inputs, prepare(values, precision), precision=precision)), (rows, precision)


@pytest.mark.parametrize("isa", [isa for isa in INSTRUCTION_SETS if isa in EXACT])
@pytest.mark.parametrize("name", FORMATS)
def test_bf16_rounds_only_the_inputs(name, isa, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    depth = 768 if FORMATS[name][0] == 256 else 800  # the last columns do not fill a chunk
    weight, values = packed(name, 96, depth)
    layer, whole = prepare(BlockTensor(weight), "bf16"), None
    inputs = torch.randn(1100, depth, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, depth)
    exact = linear_reference(inputs, values, None, "bf16 inputs")
    scale = inputs.double().abs() @ values.double().abs().T
    for rows in (1100, 200, *range(1, 18), 32, 33, 34, 40, 63, 64, 70):
        ours = linear(inputs[:rows], layer, precision="bf16")
        # What a format adds to its integers is added to their sum: more than the sum's own roundings.
        assert ((ours - exact[:rows]).abs() <= 2e-6 * scale[:rows]).all()
        whole = ours if whole is None else whole
        assert torch.equal(ours, whole[:rows])  # whatever the other rows
        narrow = linear(inputs[:rows].bfloat16(), layer, precision="bf16")
        assert torch.equal(narrow, ours)


def test_rows_of_joined_weights_have_the_same_bits_among_many():
    # Some formats have offsets and one has two scales for 32 columns; rows of bfloat16 may be read in place.
    parts = [packed(name, width, 768, i) for i, (name, width) in enumerate([("Q8_0", 64), ("Q4_1", 32), ("Q6_K", 40)])]
    layer = prepare(BlockTensor(join([BlockTensor(weight) for weight, _ in parts])), "bf16")
    gates = prepare(BlockTensor(packed("Q5_K", 128, 768)[0]), "bf16")
    wide = torch.randn(300, 1000, generator=torch.Generator().manual_seed(2)).bfloat16()
    inputs = wide[:, 100:868]  # rows that are not next to each other
    whole = linear(inputs, layer, precision="bf16")
    gated = linear_gated(inputs, gates, activation="silu", precision="bf16")
    for rows in (1, 3, 16, 33, 40, 96, 130):
        for some in (inputs[-rows:], inputs[-rows:].float()):
            assert torch.equal(linear(some, layer, precision="bf16"), whole[-rows:])
            assert torch.equal(linear_gated(some, gates, activation="silu", precision="bf16"), gated[-rows:])
            total = torch.zeros(rows, 136)
            linear_add(total, some, layer, precision="bf16")
            assert torch.equal(total, whole[-rows:])


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", FORMATS)
def test_int16_rounds_only_the_inputs(name, isa, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    depth = 768 if FORMATS[name][0] == 256 else 800  # the last columns do not fill a chunk
    weight, values = packed(name, 96, depth)
    whole = None
    for rows in (200, *range(1, 18), 32, 33, 34, 63, 70):
        inputs = torch.randn(200, depth, generator=torch.Generator().manual_seed(1))[:rows]
        inputs *= torch.logspace(-3, 3, depth)
        ours = linear(inputs, prepare(BlockTensor(weight), "int16"), precision="int16")
        exact = linear_reference(inputs, values, None, "int16 inputs")
        scale = (inputs.double().abs() @ values.double().abs().T).float()
        assert ((ours - exact).abs() <= 3e-7 * scale).all()
        whole = ours if whole is None else whole
        assert torch.equal(ours, whole[:rows])  # whatever the other rows


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", FORMATS)
def test_int16_of_massive_inputs_keeps_the_others_of_their_block(name, isa, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    weight, values = packed(name, 96, 768)
    inputs = torch.randn(200, 768, generator=torch.Generator().manual_seed(1))
    inputs[::3, 7::32] *= 1e4
    layer = prepare(BlockTensor(weight), "int16")
    ours = linear(inputs, layer, precision="int16")
    error = ours - inputs.double() @ values.double().T
    others = inputs.clone()
    others[:, 7::32] = 0  # of no row's size: what one scale would have left of them is nothing
    rest = linear(others, layer, precision="int16") - others.double() @ values.double().T
    massive = inputs[:, 7::32].double().abs() @ values[:, 7::32].double().abs().T
    assert (error.abs() <= 2 * rest.abs().max() + 1e-6 * massive).all()
    for rows in (1, 2, 3, 9, 33):
        assert torch.equal(linear(inputs[:rows], layer, precision="int16"), ours[:rows])


def test_joined_weights_multiply_as_one_and_keep_one_copy():
    parts = [packed(name, width, 512, i) for i, (name, width) in enumerate([("Q4_K", 64), ("Q6_K", 32), ("Q4_1", 40)])]
    tensors = [BlockTensor(weight) for weight, _ in parts]
    values = torch.cat([values for _, values in parts])
    assert can_join(tensors) and not can_join(tensors[::-1])
    joined = join(tensors)
    assert joined.formats == ("Q4_K", "Q6_K", "Q4_1") and torch.equal(joined.values(), values)
    for tensor, (_, own) in zip(tensors, parts, strict=True):
        assert tensor.weight is joined and torch.equal(tensor.plain(), own)
    assert not can_join(tensors)  # none of them is a whole weight any more
    inputs = torch.randn(5, 512)
    assert torch.equal(
        linear(inputs, prepare(BlockTensor(joined), "float32"), precision="float32"),
        linear(inputs, prepare(values, "float32"), precision="float32"),
    )


@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
def test_added_and_gated_products(precision):
    weight, values = packed("Q4_K", 128, 512)
    inputs, bias = torch.randn(7, 512) / 100, torch.randn(128)
    layer = prepare(BlockTensor(weight), precision)
    exact_integers = extension.used_instruction_set() in EXACT
    rounded = "bf16 inputs" if exact_integers else "bf16" if "bf16" in ways() else "torch"
    name = {"int16": "int16 inputs", "float32": "torch", "bf16": rounded}.get(precision, precision)
    exact = linear_reference(inputs, values, bias, name)
    total = torch.ones(7, 128)
    linear_add(total, inputs, layer, bias, precision=precision)
    assert torch.allclose(total, exact + 1, atol=1e-4)
    gated = linear_gated(inputs, layer, bias, activation="silu", precision=precision)
    assert torch.allclose(gated, F.silu(exact[:, :64]) * exact[:, 64:], atol=1e-4)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", ["Q8_0", "Q6_K", "Q4_1"])
def test_log_probabilities_are_those_of_the_values(name, isa, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    weight, values = packed(name, 300, 256)
    targets, labels = torch.randint(0, 300, (40,)), torch.tensor([299, 0, 64])
    for states, options in (
        (torch.randn(40, 256), {"input_precision": "float32"}),
        (torch.randn(40, 256), {"input_precision": "bf16x3"}),
        (torch.randn(40, 256), {}),
        (torch.randn(40, 256).bfloat16(), {}),
    ):
        ours = linear_logprob_stats(states, BlockTensor(weight), targets, labels=labels, impl="cpu", **options)
        if states.dtype == torch.bfloat16 and isa not in ("avx512_bf16", "amx"):
            states = states.float()  # such kernels multiply bfloat16 in float32, and round no weight to it
        plain = linear_logprob_stats(states, values.to(states.dtype), targets, labels=labels, impl="cpu", **options)
        for mine, theirs in zip(ours, plain, strict=True):
            assert torch.equal(mine, theirs)
    other = linear_logprob_stats(torch.randn(4, 256), BlockTensor(weight), targets[:4], impl="reference")
    assert other.logprob.isfinite().all()


def test_the_tensor_is_a_float32_tensor_to_pytorch():
    weight, values = packed("Q5_K", 70, 256)
    tensor = torch.nn.Parameter(BlockTensor(weight), requires_grad=False)
    assert isinstance(tensor, BlockTensor) and tensor.shape == values.shape and tensor.dtype == torch.float32
    inputs = torch.randn(3, 256)
    assert torch.equal(F.linear(inputs, tensor), F.linear(inputs, values))
    assert torch.equal(F.embedding(torch.tensor([[3, 69]]), tensor), values[[3, 69]][None])
    assert torch.equal(tensor[torch.tensor([1, -1])], values[[1, -1]])
    assert isinstance(tensor[5:50], BlockTensor) and torch.equal(tensor[5:50].plain(), values[5:50])
    assert [part.shape[0] for part in torch.split(tensor, 32)] == [32, 32, 6]
    assert torch.equal(torch.split(tensor, 32)[2] + 0, values[64:])
    assert torch.equal(tensor.T + 0, values.T) and torch.equal(tensor.abs(), values.abs())
    assert copy.deepcopy(tensor).weight is weight and "Q5_K" in repr(tensor)
    with torch.inference_mode():  # of a tensor that was made outside
        assert torch.equal(tensor.view(7, 10, -1)[2], values.view(7, 10, -1)[2])
        assert torch.equal(tensor.chunk(2)[1] + 0, values[35:]) and torch.equal(tensor.T + 0, values.T)
        assert torch.equal(tensor[2], values[2]) and torch.equal(tensor[5:9].unsqueeze(0) + 0, values[None, 5:9])
    with pytest.raises(InputError, match="got a BlockTensor"):
        tensor.zero_()


def test_bad_rows_and_damaged_weights_raise():
    rows, _ = file_rows("Q4_0", 32, 64)
    with pytest.raises(RuntimeError, match="expected uint8 rows of 96 values"):
        BlockWeight.pack(rows, "Q4_0", 96)
    infinite = rows.clone()
    infinite[3, 1] = 0x7C
    with pytest.raises(RuntimeError, match="not finite"):
        BlockWeight.pack(infinite, "Q4_0", 64)
    weight = BlockWeight.pack(rows, "Q4_0", 64)
    for at, value in ((0, 9), (8, 200), (0, 0)):
        damaged = weight.data.clone()
        damaged[at] = value
        with pytest.raises(RuntimeError, match="blocks:"):
            torch.ops.fastreader.blocks_unpack(damaged, 32, 64, 0, 32)
    with pytest.raises(RuntimeError, match="another size"):
        torch.ops.fastreader.blocks_unpack(weight.data, 64, 64, 0, 64)
    with pytest.raises(IndexError, match="ids from 0 to 31"):
        weight.rows(torch.tensor([32]))


def test_the_ops_have_fakes():
    weight, _ = packed("Q4_1", 45, 64)
    for op, rest in (
        (torch.ops.fastreader.blocks_unpack, (3, 7)),
        (torch.ops.fastreader.blocks_rows, (torch.arange(5),)),
    ):
        torch.library.opcheck(op, (weight.data, 45, 64, *rest), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("precision", ["int16", "float32", "bf16", "bf16x3"])
def test_a_value_that_is_not_finite_stays_in_its_row(precision, value):
    weight, _ = packed("Q4_1", 96, 256)
    layer = prepare(BlockTensor(weight), precision)
    for rows in (1, 5, 70):
        inputs = torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows))
        inputs[rows // 2, 100] = value
        ours = linear(inputs, layer, precision=precision)
        assert not ours[rows // 2].isfinite().any()
        others = torch.arange(rows) != rows // 2
        assert torch.equal(ours[others], linear(inputs[others], layer, precision=precision))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [False, True])
def test_products_in_plain_pytorch_unpack_a_part_at_a_time(monkeypatch, dtype, biased):
    weight, values = packed("Q5_K", 130, 512)
    rows, bias = torch.randn(9, 512, dtype=dtype), torch.randn(130, dtype=dtype) if biased else None
    want = F.linear(rows, values.to(dtype), bias)
    counts, unpacked = [], BlockWeight.values

    def counted(self, first=0, count=None):
        counts.append(count)
        return unpacked(self, first, count)

    monkeypatch.setattr(blocks, "AT_ONCE", 32 * 512)
    monkeypatch.setattr(torch_impl, "AT_ONCE", 32 * 512)
    monkeypatch.setattr(BlockWeight, "values", counted)
    with torch.inference_mode():
        for got in (linear(rows, BlockTensor(weight), bias, precision="torch"), *own_modules(rows, weight, bias)):
            assert float((got - want).abs().max()) <= 1e-6 * float(want.abs().max())
    assert set(counts) == {32, 2}


def own_modules(rows, weight, bias):
    """What a model's own linear layer gives, which takes rows of the weight's type."""
    return [] if rows.dtype == torch.float64 else [F.linear(rows, BlockTensor(weight), bias)]


def test_log_probabilities_in_plain_pytorch_unpack_a_part_at_a_time(monkeypatch):
    weight, values = packed("Q4_0", 96, 64)
    hidden, target = torch.randn(5, 64), torch.tensor([0, 31, 32, 95, 50])
    labels = torch.tensor([1, 90])
    want = linear_logprob_stats(hidden, values, target, labels=labels, impl="torch")
    counts, unpacked = [], BlockWeight.values
    monkeypatch.setattr(chunked, "_VOCABULARY", 32)
    monkeypatch.setattr(
        BlockWeight,
        "values",
        lambda self, first=0, count=None: counts.append(count) or unpacked(self, first, count),
    )
    got = linear_logprob_stats(hidden, BlockTensor(weight), target, labels=labels, impl="torch")
    assert counts == [32, 32, 32]
    assert float((got.logprob - want.logprob).abs().max()) < 1e-5
    assert float((got.label_logprob - want.label_logprob).abs().max()) < 1e-5
    half = linear_logprob_stats(hidden.bfloat16(), BlockTensor(weight), target, impl="torch")
    rounded = linear_logprob_stats(hidden.bfloat16(), values.bfloat16(), target, impl="torch")
    assert float((half.logprob - rounded.logprob).abs().max()) < 1e-5
