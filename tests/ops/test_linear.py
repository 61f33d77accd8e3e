import copy

import numpy as np
import pytest
import torch
from cpu_cases import available
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.models.machine.arithmetic import ways
from fastreader.ops import extension
from fastreader.ops.linear import PackedWeight, linear, linear_add, linear_gated, prepare
from fastreader.ops.linear.cpu import pack_together
from fastreader.ops.pointwise import gate

no_extension = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))


def inputs(rows, depth, width, weight_dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, depth, generator=generator)
    return x, torch.randn(width, depth, generator=generator).to(weight_dtype), torch.randn(width, generator=generator)


def exactly(x, weight, bias):
    return x.double() @ weight.double().T + bias.double()


SIZES = [(0, 8, 5), (1, 8, 1), (63, 40, 33), (127, 64, 129), (129, 576, 192), (257, 100, 70), (600, 96, 1500)]


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_every_cpu_path(monkeypatch, isa, weight_dtype, size):
    """Fast: only the rounding of operands, or none if the CPU widens. High: about 2^-16 of the summed terms."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x, weight, bias = inputs(*size, weight_dtype)
    terms = x.abs().double() @ weight.abs().double().T + bias.abs().double()
    fast = linear(x, weight, bias, impl="cpu")
    rounded = linear(x, weight, bias, impl="reference").double()
    near = torch.minimum((fast - rounded).abs(), (fast - exactly(x, weight, bias)).abs())
    assert (near <= 2.0**-20 * terms).all()
    high = linear(x, weight, bias, precision="bf16x3", impl="cpu")
    assert ((high - exactly(x, weight, bias)).abs() <= 2.0**-15 * terms).all()
    assert fast.dtype == high.dtype == torch.float32 and fast.shape == (size[0], size[2])


@no_extension
@pytest.mark.parametrize("isa", available(products=True))
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_float32_and_int16_on_every_cpu_path(monkeypatch, isa, weight_dtype, size):
    """Float32 rounds sums only, int16 the operands to 14 bits before them."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x, weight, bias = inputs(*size, weight_dtype)
    terms = x.abs().double() @ weight.abs().double().T + bias.abs().double()
    got = linear(x, weight, bias, precision="float32", impl="cpu")
    assert ((got - exactly(x, weight, bias)).abs() <= 2.0**-20 * terms).all()
    got = linear(x, weight, bias, precision="int16", impl="cpu")
    want = linear(x, weight, bias, precision="int16", impl="reference")
    assert ((got - want).abs() <= 2.0**-20 * terms).all()
    assert ((got - exactly(x, weight, bias)).abs() <= 2.0**-11 * terms).all()


@no_extension
@pytest.mark.parametrize("isa", available(products=True))
def test_int16_of_large_small_and_odd_values(monkeypatch, isa):
    """A block's scale is its own. Sums of the largest integers do not overflow; what is not finite stays so."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x = torch.ones(5, 96)
    x[0, 32:64] *= 1e30
    x[1, :32] *= 1e-36
    x[2] = 0
    x[3, 70] = float("inf")
    x[4, 3] = float("nan")
    weight = torch.ones(33, 96)
    got = linear(x, weight, precision="int16", impl="cpu")
    want = x[:3].double().sum(1)
    torch.testing.assert_close(got[:3].double(), want[:, None].expand(3, 33), rtol=2e-7, atol=1e-30)
    assert got[3:].isnan().all()
    worst = linear(torch.full((1, 32), 8191.0), torch.full((1, 32), -8191.0), precision="int16", impl="cpu")
    assert worst.item() == pytest.approx(-(8191.0**2) * 32, rel=1e-7)


def crafted(seed):
    """A layer of inputs with massive values, in every place of a block, and the weights that meet them."""
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    rows, depth, width = 5, int(rng.choice([64, 96, 130])), 40
    x = torch.randn(rows, depth, generator=generator)
    weight = torch.randn(width, depth, generator=generator)
    size, places = 10 ** rng.uniform(2, 6), np.arange(depth)[seed % 32 :: 32]
    match seed % 5:
        case 0:
            x[:, places], weight[:, places] = x[:, places] * size, weight[:, places] / size
        case 1:
            x[:, places], weight[:, places] = x[:, places] / size, weight[:, places] * size
        case 2:  # what most of the outputs do not read
            x[:, places] *= size
            weight[1:, places] = 0
        case 3:  # up to half of a block
            several = np.isin(np.arange(depth) % 32, rng.choice(32, int(rng.integers(2, 17)), replace=False))
            x[:, several], weight[:, several] = x[:, several] * size, weight[:, several] / size
        case 4:  # in one row, as of the first token
            x[1, places] *= size
            weight[:, places] /= size
    return x, weight.bfloat16()


@no_extension
@pytest.mark.parametrize("isa", available(products=True))
def test_int16_of_massive_values_is_as_near_as_bfloat16(monkeypatch, isa):
    """Relative to each row and each column of the result: one that massive values do not reach has its own size."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    for seed in range(240):
        x, weight = crafted(seed)
        true = x.double() @ weight.double().T
        rounded = x.bfloat16().double() @ weight.double().T - true
        packed = prepare(weight, "int16")
        error = linear(x, packed, precision="int16") - true
        assert torch.equal(linear(x[1:2], packed, precision="int16"), linear(x, packed, precision="int16")[1:2])
        for axis in (0, 1):
            size = true.norm(dim=axis)
            assert (error.norm(dim=axis) / size).max() <= 3 * (rounded.norm(dim=axis) / size).max(), seed


@no_extension
@pytest.mark.parametrize("isa", available())
def test_float32_products_of_bfloat16_weights_have_the_bits_of_their_float32_copies(monkeypatch, isa):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    for size in SIZES:
        x, weight, bias = inputs(*size, torch.bfloat16)
        narrow, wide = (linear(x, w, bias, precision="float32", impl="cpu") for w in (weight, weight.float()))
        assert torch.equal(narrow, wide)


@no_extension
@pytest.mark.parametrize("isa", available(products=True))
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
@pytest.mark.parametrize("depth", [40, 320])
def test_a_row_has_the_same_bits_in_any_company(monkeypatch, isa, weight_dtype, precision, depth):
    """Few rows, as in generation, run in separate loops."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x, weight, bias = inputs(100, depth, 40, weight_dtype)
    packed = prepare(weight, precision)
    whole = linear(x, packed, bias, precision=precision)
    for rows in [*range(1, 35), 63, 64, 65]:
        assert torch.equal(linear(x[7 : 7 + rows], packed, bias, precision=precision), whole[7 : 7 + rows])


@no_extension
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 70), st.integers(1, 70), st.integers(1, 70), st.integers(0, 100))
def test_any_size(rows, depth, width, seed):
    x, weight, _ = inputs(rows, depth, width, torch.bfloat16, seed)
    products = "bf16" if "bf16" in ways() else "torch"  # without it, float32 multiplies unrounded operands
    got, want = linear(x, weight, impl="cpu"), linear(x, weight, precision=products, impl="reference")
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


@no_extension
def test_strided_inputs_and_runs_are_bit_identical():
    x, weight, bias = inputs(300, 128, 96, torch.bfloat16)
    wide = torch.randn(300, 256)
    wide[:, ::2] = x
    want = linear(x, weight, bias, impl="cpu")
    assert torch.equal(linear(wide[:, ::2], weight, bias, impl="cpu"), want)
    assert torch.equal(linear(x, weight.T.contiguous().T, bias, impl="cpu"), want)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(linear(x, weight, bias, impl="cpu"), want)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(linear(x[70:90], weight, bias, impl="cpu"), want[70:90])


@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "torch"])
def test_the_pytorch_path(precision):
    x, weight, bias = inputs(33, 40, 20, torch.bfloat16)
    want = linear(x, weight, bias, precision=precision, impl="reference")
    got = linear(x, weight, bias, precision=precision, impl="torch")
    # PyTorch's bfloat16 product rounds its result as well: half a unit in the last of 8 bits.
    tolerance = {"rtol": 2.0**-8, "atol": 2.0**-7} if precision == "bf16" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(got, want, **tolerance)


def test_float64_is_exact():
    x, weight, bias = inputs(9, 16, 7, torch.bfloat16)
    assert torch.equal(linear(x.double(), weight, bias, precision="torch"), exactly(x, weight, bias))


@no_extension
@pytest.mark.parametrize("precision", ["bf16", "bf16x3"])
def test_a_prepared_weight_serves_many_products(precision):
    x, weight, bias = inputs(70, 48, 40, torch.bfloat16)
    prepared = prepare(weight, precision)
    assert isinstance(prepared, PackedWeight)
    want = linear(x, weight, bias, precision=precision, impl="cpu")
    assert torch.equal(linear(x, prepared, bias, precision=precision), want)
    other = {"bf16": "bf16x3", "bf16x3": "bf16"}[precision]
    with pytest.raises(InputError, match="prepared for precision"):
        linear(x, prepared, bias, precision=other)
    with pytest.raises(InputError, match="weight must be"):
        linear(x[:, :40], prepared, precision=precision)
    with pytest.raises(UnsupportedImplementationError, match="prepared for impl"):
        linear(x, prepared, bias, precision=precision, impl="torch")
    assert prepare(weight, "torch") is weight


@no_extension
def test_registration():
    x, weight, bias = inputs(5, 16, 7, torch.bfloat16)
    for precision in ("bf16", "float32", "int16", "bf16x3"):
        packed = prepare(weight, precision)
        arguments = (x, packed.data, 7, bias, packed.layout[0], "bf16", "auto")
        torch.library.opcheck(torch.ops.fastreader.linear, arguments)
    with pytest.raises(RuntimeError, match="packed for another size"):
        torch.ops.fastreader.linear(x, packed.data[:-1], 7, bias, "bf16x3", "bf16", "auto")
    with pytest.raises(RuntimeError, match='expected "bf16x3", "float32" or None, got tf32'):
        torch.ops.fastreader.linear(x, packed.data, 7, bias, "tf32", "bf16", "auto")


@pytest.mark.parametrize("impl", ["auto", "torch", "reference"])
def test_an_input_that_is_bfloat16_already(impl):
    x, weight, bias = inputs(33, 40, 70, torch.bfloat16)
    rounded = x.bfloat16()
    out = linear(rounded, weight, bias, impl=impl)
    assert out.dtype == torch.float32
    assert torch.equal(out, linear(rounded.float(), weight, bias, impl=impl))


GOOD = dict(zip(("input", "weight", "bias"), inputs(4, 8, 6, torch.bfloat16), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"precision": "best"}, InputError, "precision must be one of"),
        ({"input": torch.randn(4, 8).bfloat16(), "precision": "bf16x3"}, InputError, "input must be"),
        ({"input": torch.randn(8)}, InputError, "input must be"),
        ({"weight": torch.randn(6, 9)}, InputError, "weight must be"),
        ({"weight": torch.ones(6, 8, dtype=torch.int32)}, InputError, "weight must be"),
        ({"bias": torch.randn(5)}, InputError, "bias must be"),
        ({"weight": torch.randn(6, 8, requires_grad=True)}, InputError, "gradient"),
        ({"impl": "abacus"}, UnsupportedImplementationError, "impl must be one of"),
        ({"impl": "cpu", "precision": "torch"}, UnsupportedImplementationError, "PyTorch's own"),
    ],
)
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error, match=message):
        linear(**{**copy.copy(GOOD), **change})


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
@pytest.mark.parametrize("size", SIZES)
def test_added_to_a_sum(monkeypatch, isa, precision, size):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x, weight, bias = inputs(*size, torch.bfloat16)
    start = torch.randn(size[0], size[2], generator=torch.Generator().manual_seed(1))
    packed, total = prepare(weight, precision), start.clone()
    linear_add(total, x, packed, bias, precision=precision)
    product = linear(x, packed, bias, precision=precision)
    terms = x.abs().double() @ weight.abs().double().T + bias.abs() + start.abs()
    assert ((total.double() - start.double() - product.double()).abs() <= 2.0**-20 * terms).all()
    if size[0] > 40:  # the order of the sums of a row is the same alone
        alone = start[33:40].clone()
        linear_add(alone, x[33:40], packed, bias, precision=precision)
        assert torch.equal(alone, total[33:40])


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("rows", "depth", "inner"),
    [(0, 8, 32), (1, 40, 64), (3, 40, 352), (8, 64, 288), (17, 32, 96), (70, 64, 33), (300, 576, 96)],
)
def test_gated(monkeypatch, isa, precision, activation, rows, depth, inner):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x, weight, bias = inputs(rows, depth, 2 * inner, torch.bfloat16)
    packed = prepare(weight * 0.1, precision)
    for own in (bias, None):
        gates, up = linear(x, packed, own, precision=precision).chunk(2, dim=1)
        want = gate(gates, up, activation)
        got = linear_gated(x, packed, own, activation=activation, precision=precision)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        rounded = linear_gated(x, packed, own, activation=activation, bf16=True, precision=precision)
        assert torch.equal(rounded, got.bfloat16())


def test_sums_and_gates_without_packing():
    x, weight, bias = inputs(9, 16, 12, torch.float32)
    total = torch.ones(9, 12)
    linear_add(total, x, weight, bias, precision="torch")
    torch.testing.assert_close(total, 1 + linear(x, weight, bias, precision="torch"))
    gates, up = linear(x, weight, bias, precision="torch").chunk(2, dim=1)
    got = linear_gated(x, weight, bias, activation="silu", precision="torch")
    torch.testing.assert_close(got, torch.nn.functional.silu(gates) * up)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: linear_add(torch.ones(3, 5), x, w), r"sum must be \[4, 5\] in torch.float32, got \[3, 5\]"),
        (lambda x, w: linear_add(torch.ones(4, 5).double(), x, w), "got .* in torch.float64"),
        (lambda x, w: linear_gated(x, w, activation="silu"), "even number of rows, got 5"),
        (
            lambda x, w: linear_gated(x, w[:4], activation="relu"),
            "activation must be one of silu, gelu_tanh, got 'relu'",
        ),
    ],
)
def test_bad_sums_and_gates_are_refused(call, message):
    x, weight, _ = inputs(4, 8, 5, torch.float32)
    with pytest.raises(InputError, match=message):
        call(x, weight)


@no_extension
def test_opcheck_of_sums_and_gates():
    x, weight, bias = inputs(5, 9, 64, torch.bfloat16)
    packed = prepare(weight, "bf16")
    torch.library.opcheck(
        torch.ops.fastreader.linear_add_, (torch.zeros(5, 64), x, packed.data, bias, None, "bf16", "auto")
    )
    arguments = (x, packed.data, 64, bias, "silu", True, None, "bf16", "auto")
    torch.library.opcheck(torch.ops.fastreader.linear_gated, arguments)


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
def test_weights_packed_together_are_those_of_one_weight(monkeypatch, isa, weight_dtype, precision):
    """The bytes are the same, and the weights become parts of the whole, if the layout is whole panels in a row."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    if precision in ("float32", "int16") and isa not in available(products=True):
        precision = "bf16"
    weights = [inputs(1, 70, width, weight_dtype, seed=width)[1] for width in (64, 32, 96)]
    packed, together = [prepare(weight, precision) for weight in weights], prepare(torch.cat(weights), precision)
    found = pack_together(weights, precision)
    if precision == "int16" or (precision == "bf16x3" and weight_dtype == torch.float32):
        assert found is None
        return
    whole, parts = found
    assert torch.equal(whole.data, together.data) and whole.width == together.width and whole.layout == together.layout
    assert {part.data.untyped_storage().data_ptr() for part in parts} == {whole.data.untyped_storage().data_ptr()}
    for part, before in zip(parts, packed, strict=True):
        assert torch.equal(part.data, before.data) and part.width == before.width
    assert pack_together([weights[0][:40], weights[1]], precision) is None  # not whole panels
    assert pack_together([weights[0], weights[1].double()], precision) is None
    half_is_widened = pack_together([weights[0], weights[1].half()], precision) is not None
    assert half_is_widened == (weight_dtype == torch.float32)
    with pytest.raises(RuntimeError, match=r"expected weights of one depth and type, got \[32, 69\]"):
        torch.ops.fastreader.linear_pack([weights[0], weights[1][:, 1:]], None, isa)
