"""Readers whose weights keep the integers of a GGUF file, against transformers on the dequantised file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import gguf_files
from helpers.support import PACKAGED, tiny_llama
from test_gguf import write

from fastreader import Reader
from fastreader.errors import InputError
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.weights import WeightForm, bytes_of
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.ops import extension
from fastreader.ops.linear import BlockTensor, UnpackedTensor, WidenedTensor
from fastreader.ops.linear.blocks import FORMATS

pytest.importorskip("gguf", reason="needs the extra gguf")
pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
PAIRS = [([3, 50, 60, 7], [9, 11]), ([3, 50, 60, 7], [12]), (list(range(5, 90)), [40, 41, 42])]  # tokens


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dequantised(file):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    ).eval()


def alone(model, ids, continuation):
    """Log-likelihood of a continuation by transformers, one sequence at a time."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*ids, *continuation]])).logits[0, len(ids) - 1 : -1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(continuation)[:, None]).sum().item()


# Nats over three tokens; transformers in bfloat16 is off by up to 0.21.
FAST = {"int16": 0.01, "bf16": 0.15, "float32": 1e-3}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_reader_of_a_quantised_file_is_that_of_its_values(tmp_path, cache, kind):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), kind)
    plain = dequantised(file)
    wanted = [alone(plain, *pair) for pair in PAIRS]
    loaded = load(LoadOptions(file, "cpu", "file", "exact")).model
    kept = {name: p for name, p in loaded.named_parameters() if isinstance(p, BlockTensor)}
    assert kept.keys() == {name for name, p in plain.named_parameters() if p.dim() == 2}
    for name, parameter in kept.items():
        assert torch.equal(parameter.plain(), plain.get_parameter(name)), name
    for precision, bound in (("exact", 1e-4), ("high", 1e-3), ("fast", None)):
        reader = Reader.load(file, "cpu", "file", precision, check="full")
        assert reader.describe()["dtype"] == kind and kind in repr(reader)
        assert isinstance(reader.model.get_output_embeddings().weight, BlockTensor)
        bound = bound or FAST[reader.arithmetic.products]
        for want, ours in zip(wanted, reader.loglikelihood(PAIRS), strict=True):
            assert abs(ours.logprob - want) <= bound


@pytest.mark.parametrize("products", ["bf16", "int16", "float32"])
def test_every_way_to_multiply_reads_and_writes(tmp_path, cache, products):
    if products == "bf16" and extension.best_instruction_set() not in ("avx512_bf16", "amx"):
        pytest.skip("this machine has no bfloat16 products")
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q4_0")
    reader = Reader.load(file, "cpu", "file", products=products)
    alone, together = (reader.generate(prompts, max_new_tokens=8) for prompts in (["the quick"], ["the quick", "a"]))
    assert alone[0][0].token_ids == together[0][0].token_ids


def test_joined_weights_are_held_once(tmp_path, cache):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0")
    reader = Reader.load(file, "cpu", "file")
    held = {}
    for module in reader.model.modules():
        for value in [*vars(module).values(), *module.parameters(recurse=False)]:
            for item in value if isinstance(value, list) else [value]:
                data = item.weight.data if isinstance(item, BlockTensor) else getattr(item, "data", None)
                if isinstance(data, torch.Tensor) and not isinstance(data, BlockTensor):
                    held[data.data_ptr()] = data.numel() * data.element_size()
    assert sum(held.values()) <= 1.15 * file.stat().st_size


def test_a_folder_without_a_quantised_file_is_named(tmp_path, cache, model):
    with pytest.raises(InputError, match=r"dtype.*no GGUF file of quantised weights"):
        Reader.load(model, "cpu", "file")
    file = write(tmp_path / "plain.gguf", tiny_llama(), "F16")
    with pytest.raises(InputError, match=r"dtype.*no GGUF file of quantised weights"):
        Reader.load(file, "cpu", "file")


def test_the_packaged_reader_has_the_integers_of_its_file(packaged_folder):
    """Its values and names are gguf's."""
    import gguf

    loaded = load(LoadOptions(PACKAGED, "cpu", "auto", "exact"))
    assert loaded.arithmetic.stored == "Q4_1 + Q8_0"
    config = loaded.model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(packaged_folder / "model.gguf").tensors}
    for name, parameter in loaded.model.named_parameters():
        tensor = stored.pop(names.get_name(name, try_suffixes=(".weight",)))
        values = parameter.plain() if isinstance(parameter, BlockTensor) else parameter.detach()
        count = heads.get(name.split(".")[-2])
        if count is not None:  # files keep the two features that rotate together next to each other
            values = values.unflatten(0, (count, 2, -1)).transpose(1, 2).reshape(values.shape)
        assert np.array_equal(values.float().numpy(), gguf.quants.dequantize(tensor.data, tensor.tensor_type)), name
    assert not stored


@pytest.mark.usefixtures("nothing_served")
def test_the_type_says_what_becomes_of_the_integers(tmp_path, cache, monkeypatch):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q4_1")
    plain = dequantised(file).state_dict()

    def read(dtype, precision="exact", **options):
        loaded = load(LoadOptions(file, "cpu", dtype, precision, **options))
        return {name: value.float() for name, value in loaded.model.state_dict().items()}, loaded.arithmetic

    for dtype in ("auto", "file", "float32", torch.float64):
        values, arithmetic = read(dtype)
        assert bool(arithmetic.formats) == (dtype in ("auto", "file"))
        assert all(torch.equal(value, plain[name]) for name, value in values.items())
    for values, arithmetic in (read("bfloat16"), read("auto", keep_integers=False)):
        assert not arithmetic.formats and arithmetic.dtype == torch.bfloat16
        assert all(torch.equal(value, plain[name].bfloat16().float()) for name, value in values.items())
    monkeypatch.setattr(extension, "why_missing", lambda: "it is not there")
    for dtype, precision in (("auto", "exact"), ("auto", "high"), ("float32", "exact")):
        values, arithmetic = read(dtype, precision)
        assert arithmetic.dtype == torch.float32 and not arithmetic.formats
        assert all(torch.equal(value, plain[name]) for name, value in values.items())
    assert read("auto", "fast")[1].dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"dtype.*it is not there"):
        read("file")


def test_weights_that_keep_no_integers_keep_their_values(tmp_path, cache):
    half = "model.layers.0.mlp.down_proj.weight"
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0", halves=[half])
    plain = dequantised(file)
    assert not torch.equal(plain.get_parameter(half).bfloat16().float(), plain.get_parameter(half))
    for dtype in ("file", "float32"):
        loaded = load(LoadOptions(file, "cpu", dtype, "exact")).model
        assert torch.equal(loaded.get_parameter(half), plain.get_parameter(half))


def in_file(parameters, file):
    """Return the names of the parameters whose memory is that of a mapped file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split("-", 1)[0:2] for line in lines if line.endswith(str(file))]
    spans = [(int(first, 16), int(rest.split(" ", 1)[0], 16)) for first, rest in ranges]
    return {name for name, p in parameters.items() if any(low <= p.data_ptr() < high for low, high in spans)}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list what is mapped")
@pytest.mark.parametrize(("kind", "every"), [("F16", True), ("Q8_0", False)])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_halves_stay_in_their_file_until_they_are_laid_out(tmp_path, cache, kind, every, precision):
    """Alone, or next to quantised matrices: no copy in float32 is held, and the values give the numbers."""
    model = tiny_llama(tie_word_embeddings=False)
    layers = [name for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2]
    halves = layers if every else [name for name in layers if "mlp" in name]
    file = write(tmp_path / "tiny.gguf", model, kind, halves=halves)
    plain = dequantised(file)
    loaded = load(LoadOptions(file, "cpu", "auto", precision))
    held = {name: p for name, p in loaded.model.named_parameters() if isinstance(p, WidenedTensor)}
    assert held.keys() == set(halves)
    reordered = {name for name in halves if name.endswith(("q_proj.weight", "k_proj.weight"))}
    assert in_file({name: p.stored for name, p in held.items()}, file) == set(halves) - reordered
    for name, parameter in loaded.model.named_parameters():
        assert parameter.dtype == torch.float32 and torch.equal(parameter + 0, plain.get_parameter(name)), name
    reader = Reader.load(file, "cpu", precision=precision, check="full")
    assert reader.describe()["dtype"] == ("float32" if every else "Q8_0 + F16")
    bound = 1e-4 if precision == "exact" else FAST[reader.arithmetic.products]
    for pair, got in zip(PAIRS, reader.loglikelihood(PAIRS), strict=True):
        assert abs(got.logprob - alone(plain, *pair)) <= bound
    kept = [value for module in reader.model.modules() for value in module.parameters(recurse=False)]
    assert not any(isinstance(value, WidenedTensor) for value in kept)  # the layouts have replaced them


def test_halves_are_numbers_where_devices_are_chosen(tmp_path, cache):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "F16")
    loaded = load(LoadOptions(file, device_map={"": "cpu"})).model
    assert not any(isinstance(parameter, WidenedTensor) for parameter in loaded.parameters())


def test_the_memory_of_halves_is_that_of_their_layout(tmp_path, cache):
    model = tiny_llama(tie_word_embeddings=False)
    file = GgufFile(write(tmp_path / "tiny.gguf", model, "F16"))
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.dim() == 2}
    vectors = sum(p.numel() for p in model.parameters()) - sum(sizes.values())
    layers = sum(size for name, size in sizes.items() if ".layers." in name)
    turned = sum(size for name, size in sizes.items() if name.endswith(("q_proj.weight", "k_proj.weight")))
    others = sum(sizes.values()) - layers
    widened = bytes_of(file, WeightForm(keep=False, halves=True), laid_out=True)
    assert widened == 2 * layers + 2 * turned + 6 * others + 4 * vectors
    copied = bytes_of(file, WeightForm(keep=False, halves=False), laid_out=True)
    assert copied == 6 * (layers + others) + 4 * vectors


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list what is mapped")
def test_matrices_in_the_type_that_is_kept_stay_in_their_file(tmp_path, cache):
    """But rows of embeddings are read as long as the model lives, and the file may be cut off meanwhile."""
    file = write(tmp_path / "tiny.gguf", tiny_llama(tie_word_embeddings=False), "BF16")
    before = file.read_bytes()
    loaded = load(LoadOptions(file, "cpu")).model
    held = in_file(dict(loaded.named_parameters()), file)
    matrices = {name for name, p in loaded.named_parameters() if p.dim() == 2}
    reordered = {name for name in matrices if name.endswith(("q_proj.weight", "k_proj.weight"))}
    assert held == matrices - reordered - {"model.embed_tokens.weight"} and len(held) > 4
    plain = dequantised(file)
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == torch.bfloat16 and torch.equal(parameter.float(), plain.get_parameter(name)), name
        parameter.zero_()
    assert file.read_bytes() == before


def test_a_given_model_has_no_file(tiny_reader):
    with pytest.raises(InputError, match=r"dtype.*for a given model"):
        Reader.load((tiny_llama(), tiny_reader.tokenizer), dtype="file")


def random_blocks(values, kind):
    """Return rows of random bytes of a type that gguf can unpack but not pack, in which every value is moderate."""
    from gguf import GGML_QUANT_SIZES, quants

    size, width = GGML_QUANT_SIZES[kind]
    generator, found, wanted = np.random.default_rng(0), [], values.size // size
    while sum(map(len, found)) < wanted:
        pool = generator.integers(0, 256, (16 * wanted, width), dtype=np.uint8)
        with np.errstate(all="ignore"):
            largest = np.abs(quants.dequantize(pool, kind)).max(axis=1)
        found.append(pool[(largest > 1e-3) & (largest < 1.0)])
    return np.concatenate(found)[:wanted].reshape(values.shape[0], -1)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
@pytest.mark.long(keep=2)
def test_every_type_has_the_values_of_its_file(tmp_path, cache, monkeypatch, kind):
    monkeypatch.setattr("gguf.quants.quantize", random_blocks)
    file = write(tmp_path / "tiny.gguf", tiny_llama(hidden_size=256, intermediate_size=256), kind)
    plain = dequantised(file)
    stored = kind in FORMATS
    for dtype in ("auto", "float32"):
        loaded = load(LoadOptions(file, "cpu", dtype, "exact")).model
        for name, parameter in loaded.named_parameters():
            wanted = plain.get_parameter(name)
            if isinstance(parameter, BlockTensor):
                assert stored and torch.equal(parameter.plain(), wanted), name
            else:
                assert parameter.dtype == torch.float32 and torch.equal(parameter, wanted), name
    reader = Reader.load(file, "cpu", "float32", "exact", check="off")
    for pair, ours in zip(PAIRS, reader.loglikelihood(PAIRS), strict=True):
        assert abs(ours.logprob - alone(plain, *pair)) <= 1e-4
    dtype = Reader.load(file, "cpu", check="off").describe()["dtype"]
    assert dtype == (kind if stored else f"{kind} as bfloat16")


@pytest.mark.parametrize("kind", ["Q2_K", "IQ3_S", "IQ2_XXS"])
def test_types_of_no_kernel_are_unpacked_as_they_are_laid_out(tmp_path, cache, monkeypatch, kind):
    """Next to types that kernels multiply, so that the reader is in float32."""
    monkeypatch.setattr("gguf.quants.quantize", random_blocks)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": True}
    model = gguf_files.tiny("llama", **sizes)
    tensors, keys = gguf_files.tensors_of("llama", model), gguf_files.keys_of("llama", model.config)
    ours = lambda name: kind if name.startswith("blk.") and "ffn_down" not in name else "Q4_K"  # noqa: E731
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", tensors, {**keys, "rope.dimension_count": 64}, ours)
    plain = dequantised(file)
    loaded = load(LoadOptions(file, "cpu", "file", "exact")).model
    held = {name: p for name, p in loaded.named_parameters() if isinstance(p, UnpackedTensor)}
    matrices = {name for name, p in plain.named_parameters() if p.dim() == 2}
    assert held.keys() == {name for name in matrices if ".layers." in name and "down_proj" not in name}
    for name, parameter in held.items():
        assert torch.equal(parameter.plain(), plain.get_parameter(name)), name
    stored = {tensor.name: tensor for tensor in GgufFile(file).tensors.values()}
    raw = sum(tensor.size for tensor in stored.values() if tensor.type == kind)
    taken = bytes_of(GgufFile(file), WeightForm(keep=True, halves=True), laid_out=True)
    others = sum(tensor.size for tensor in stored.values()) - raw
    assert taken == raw + 2 * sum(parameter.numel() for parameter in held.values()) + others
    for precision, bound in (("exact", 1e-4), ("high", 1e-3), ("fast", 0.3)):
        reader = Reader.load(file, "cpu", "file", precision, check="full")
        assert not any(isinstance(p, UnpackedTensor) for p in reader.local_model.model.model.parameters())
        for pair, got in zip(PAIRS, reader.loglikelihood(PAIRS), strict=True):
            assert abs(got.logprob - alone(plain, *pair)) <= bound
