"""No weight is laid out twice: joined layers share memory, and a load holds one layout and the file."""

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama
from test_architectures import tiny

from fastreader import Reader
from fastreader.models.machine.arithmetic import ways
from fastreader.models.rewriting.fused import JoinedLinear, UpcastLinear, parts
from fastreader.ops import extension
from fastreader.ops.linear import PackedWeight, cpu

no_extension = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
PRODUCTS = [
    pytest.param(
        precision, way, marks=pytest.mark.skipif(way not in ways(), reason="this machine has no bfloat16 products")
    )
    for precision, way in (("fast", "bf16"), ("fast", "int16"), ("fast", "float32"), ("high", "bf16x3"))
]


def layer(rows, dtype, seed):
    made = torch.nn.Linear(64, rows, bias=False, dtype=dtype)
    made.weight.data = torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made


def storages(weights):
    return {w.data.untyped_storage().data_ptr() for w in weights if isinstance(w, PackedWeight)}


@no_extension
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_joined_layers_hold_their_weights_once_and_give_the_same_bits(precision, dtype):
    """Also if they are joined while products are exact, as trials do."""
    layers = [layer(rows, dtype, rows) for rows in (64, 32)]
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    single = [UpcastLinear(each, precision) for each in layers]
    before = [each(rows) for each in single]
    with single[0].exact(), single[1].exact():
        joined = JoinedLinear(single, precision)
    held = [w for each in single if (w := each._weight) is not None]
    assert storages(held) <= storages(joined._weights) and len(storages(joined._weights)) == 1
    for got, again, want in zip(joined(rows), [each(rows) for each in single], before, strict=True):
        assert torch.equal(again, want)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)


@no_extension
@pytest.mark.parametrize(("precision", "products"), PRODUCTS)
@pytest.mark.parametrize("family", ["Llama", "Llama, biases", "Phi3, window", "Gemma3, window", "Qwen3"])
def test_a_reader_lays_every_weight_out_once(family, precision, products):
    model = tiny(family)
    reader = Reader.load((model, byte_tokenizer()), precision=precision, products=products)
    modules = list(reader.local_model.model.model.modules())
    weights = [m._weight for m in modules if isinstance(m, UpcastLinear)]
    weights += [w for m in modules if isinstance(m, JoinedLinear) for w in m._weights]
    packed = [w for w in weights if isinstance(w, PackedWeight)]
    assert len(packed) == len(weights)
    linear = sum(m.weight.numel() for m in model.model.modules() if isinstance(m, torch.nn.Linear))
    assert sum(w.width * w.depth for w in packed) == linear
    assert sum(w.data.untyped_storage().nbytes() for w in packed) == sum(w.data.nbytes for w in packed)


@no_extension
def test_only_layers_that_trials_run_are_laid_out_before_they_are_joined(monkeypatch):
    """Of eight layers the first and the last, since laying out takes most of a later load."""
    laid_out = []

    def counted(weights, precision):
        laid_out.append(sum(weight.numel() for weight in weights))
        return own(weights, precision)

    own = cpu._packed
    monkeypatch.setattr(cpu, "_packed", counted)
    model = tiny_llama(num_hidden_layers=8).bfloat16()
    reader = Reader.load((model, byte_tokenizer()), check="off", products="float32")
    assert reader.local_model.model.forward_path.startswith("fused (8 layer")
    linear = sum(m.weight.numel() for m in model.model.modules() if isinstance(m, torch.nn.Linear))
    assert linear <= sum(laid_out) <= 1.3 * linear


@no_extension
def test_dropped_layouts_are_made_again_when_stored_weights_go(monkeypatch):
    made = UpcastLinear(layer(64, torch.bfloat16, 0), "bf16")
    rows = torch.randn(3, 64)
    before = made(rows)
    made.hold(None)
    made.release()
    monkeypatch.setattr(parts, "prepare", None)
    assert made.stored == () and torch.equal(made(rows), before)
