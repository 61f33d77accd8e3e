import struct

import numpy as np
import pytest
import torch
from gguf import GGUFValueType
from helpers import gguf_files
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.errors import ModelFileError, ModelNotFoundError
from fastreader.models.gguf import weights
from fastreader.models.gguf.header import parse
from fastreader.models.loading import find, revision
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.revision import vocabulary_digest

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    for ours, theirs in (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")):
        if name == f"{ours}.weight":
            return f"{theirs}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(weight, heads):
    """Return the rows of a query or key projection in llama.cpp's order for its rotary embedding."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(file, model, dtype, leave_out=(), halves=()):
    """Write a GGUF file of a tiny Llama and the byte tokenizer: matrices in `dtype` or F16, the rest in float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

    config, tokenizer = model.config, byte_tokenizer()
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [*tokenizer.convert_ids_to_tokens(range(config.vocab_size - 1)), "ab"]  # a vocabulary needs a merge
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if t.startswith("<|") else TokenType.NORMAL for t in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    kind = GGMLQuantizationType[dtype]
    for name, weight in model.state_dict().items():
        if name in leave_out:
            continue
        values = weight.float().numpy()
        for projection, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if projection in name:
                values = interleaved(values, heads)
        if name in halves:
            writer.add_tensor(gguf_name(name), values.astype(np.float16))
        elif values.ndim > 1 and dtype not in ("F32", "F16"):
            writer.add_tensor(gguf_name(name), quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(
                gguf_name(name), values.astype(np.float16 if values.ndim > 1 and dtype == "F16" else "f4")
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("F32", torch.float32), ("F16", torch.float32), ("BF16", torch.bfloat16), ("Q8_0", torch.bfloat16)],
)
def test_a_gguf_file_keeps_the_bits_it_has(tmp_path, cache, dtype, stored):
    model = tiny_llama()
    if dtype in ("F16", "BF16"):
        model = model.to(torch.float16 if dtype == "F16" else torch.bfloat16)
    file = write(tmp_path / "tiny.gguf", model, dtype)
    loaded = load(LoadOptions(file, "cpu", "auto", "exact", keep_integers=False))
    assert loaded.arithmetic.dtype == stored and loaded.tokenizer.eos_token_id == 1
    for name, weight in loaded.model.state_dict().items():
        if dtype == "Q8_0":
            assert torch.allclose(weight.float(), model.state_dict()[name].float(), atol=0.02)
        else:
            assert torch.equal(weight.float(), model.state_dict()[name].float()), name


def test_a_gguf_file_that_lacks_a_weight_raises(tmp_path, cache):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "F32", ["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(ModelFileError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(LoadOptions(file, "cpu", "auto", "exact"))


def test_nothing_is_written_but_notes(tmp_path, cache):
    (cache / "gguf" / f"{'0' * 24}-4").mkdir(parents=True)  # a conversion of an earlier version
    Reader.load(write(tmp_path / "tiny.gguf", tiny_llama(), "Q4_0"), "cpu")
    assert not (cache / "gguf").exists()
    written = [file for file in cache.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in written) < 100_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache", "tiny.gguf"]


def test_what_is_not_ours_stays(tmp_path, cache):
    mine = cache / "gguf"  # a folder of the user's, within that of FASTREADER_CACHE
    mine.mkdir(parents=True)
    file = write(mine / "tiny.gguf", tiny_llama(), "Q4_0")
    (mine / f"{'0' * 24}-4").mkdir()
    Reader.load(file, "cpu")
    assert [path.name for path in mine.iterdir()] == ["tiny.gguf"]


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path, cache, monkeypatch):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q4_0")
    read = weights.raw_rows

    def changing(tensor, *held):
        file.write_bytes(file.read_bytes())
        return read(tensor, *held)

    monkeypatch.setattr(weights, "raw_rows", changing)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: was changed or removed while it was read"):
        Reader.load(file, "cpu")


def test_a_damaged_tensor_is_named(tmp_path, cache):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q4_0")
    _, tensors = parse(file)
    found = tensors["blk.1.ffn_up.weight"]
    content = bytearray(file.read_bytes())
    content[found.offset : found.offset + 2] = np.float16("inf").tobytes()  # the first block's scale
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: blk\.1\.ffn_up\.weight is damaged.*scale is not finite"):
        Reader.load(file, "cpu")


def test_a_file_that_may_not_be_read_is_named(tmp_path, cache, monkeypatch):
    def closed(path, *args):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(find.Path, "is_file", closed)  # as in another user's folder
    with pytest.raises(ModelNotFoundError, match=r"tiny\.gguf: this user lacks a permission .*tiny"):
        Reader.load(tmp_path / "tiny.gguf")


def test_the_revision_is_that_of_the_content(tmp_path, cache):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0")
    before = Reader.load(file, "cpu")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(file.read_bytes())
    assert Reader.load(copy, "cpu").revision == before.revision
    assert Reader.load(file, "cpu", "float32").revision == before.revision  # the same values
    assert Reader.load(file, "cpu", "bfloat16").revision != before.revision
    other = write(file, tiny_llama(seed=1), "Q8_0")
    assert Reader.load(other, "cpu").revision != before.revision


def test_the_digest_of_a_files_vocabulary_is_computed_once(tmp_path, cache, monkeypatch):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "Q8_0")
    computed = []

    def counted(tokenizer):
        computed.append(len(tokenizer))
        return vocabulary_digest(tokenizer)

    monkeypatch.setattr(revision, "vocabulary_digest", counted)
    first, again = (Reader.load(file, "cpu").revision for _ in range(2))
    assert computed == [261] and first == again
    monkeypatch.setattr(revision, "kept_note", lambda kind, key, compute: compute())
    assert Reader.load(file, "cpu").revision == first and len(computed) == 2


def test_nothing_beside_the_file_is_read(tmp_path, cache):
    file = write(tmp_path / "tiny.gguf", tiny_llama(), "F32")
    before = Reader.load(file, "cpu").encoder.tokenizer.get_vocab()
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json", "adapter_config.json"):
        (tmp_path / name).write_text("{broken")
    assert Reader.load(file, "cpu").encoder.tokenizer.get_vocab() == before


def split(file, count):
    """Split a file of float32 tensors as llama-gguf-split does: keys in the first part, tensors in all."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(file)
    writer = GGUFWriter(file, "llama", split_max_tensors=-(-len(reader.tensors) // count))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(file.parent.glob(f"{file.stem}-*-of-*.gguf"))


def test_a_split_file_is_joined_from_any_of_its_parts(tmp_path, cache):
    whole = write(tmp_path / "tiny.gguf", tiny_llama(), "F32")
    parts = split(whole, 3)
    assert len(parts) == 3
    expected = load(LoadOptions(whole, "cpu")).model.state_dict()
    for part in parts:
        values = load(LoadOptions(part, "cpu")).model.state_dict()
        assert values.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in values.items())
    parts[1].rename(tmp_path / "away.gguf")
    for path in (parts[0], parts[2], tmp_path / "away.gguf"):
        with pytest.raises(ModelFileError, match=r"tiny-00002-of-00003\.gguf is missing|part 1 .from 0. of 3"):
            load(LoadOptions(path, "cpu"))


def test_a_file_that_was_merged_from_parts_is_whole(tmp_path, cache):
    """`llama-gguf-split --merge` leaves the keys of the first part, with a count of 0."""
    model = tiny_llama()
    file = gguf_files.write(
        tmp_path / "merged.gguf",
        "llama",
        gguf_files.tensors_of("llama", model),
        gguf_files.keys_of("llama", model.config),
        whole={"split.count": 0, "split.no": 0, "split.tensors.count": 21},
    )
    values = load(LoadOptions(file, "cpu", check="off")).model.state_dict()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in values.items())


def test_a_folder_of_gguf_files_lists_them(tmp_path, cache):
    write(tmp_path / "tiny.gguf", tiny_llama(), "F32")
    with pytest.raises(ModelNotFoundError, match=r"config\.json; pass the path of one of its GGUF files: tiny\.gguf"):
        load(LoadOptions(tmp_path, "cpu"))


def test_a_count_beyond_the_file_is_refused_at_once(tmp_path):
    """A loop over the count that a header announces could take days in a file of 100 bytes."""
    key = struct.pack("<Q4sIIQ", 4, b"list", 9, 6, 2**40)
    for name, header in (
        ("array", struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + key),
        ("strings", struct.pack("<4sIQQQ4sIIQ", b"GGUF", 3, 0, 1, 4, b"list", 9, 8, 2**40)),
        ("keys", struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60)),
        ("tensors", struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0)),
        ("length", struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**62) + b"name"),
        ("type", struct.pack("<4sIQQQ4sI", b"GGUF", 3, 0, 1, 4, b"list", 77)),
    ):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(header)
        with pytest.raises(ModelFileError, match=rf"{name}\.gguf: truncated or damaged"):
            parse(file)
