import struct

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader.data import fingerprints
from fastreader.errors import ModelFileError
from fastreader.models.loading import gguf
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions

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
    assert gguf.storage_type(file) == stored
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
    assert not [f for f in (cache / "gguf").iterdir() if f.suffix != ".lock" and f.name != "digests"]


def test_a_file_is_hashed_once_and_converted_again_when_it_changes(tmp_path, cache, monkeypatch):
    made = []
    monkeypatch.setattr(gguf, "convert", lambda path, folder: made.append(path.read_bytes()))
    monkeypatch.setattr(fingerprints, "_SETTLED", -(10**12))  # the file counts as old
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF one")
    first = gguf.converted(file)
    with monkeypatch.context() as within:
        within.setattr(fingerprints, "file_digest", None)  # hashing again would raise
        assert gguf.converted(file) == first
    with monkeypatch.context() as within:  # a read-only cache that has the model
        within.setattr(fingerprints, "write_text", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
        copy = tmp_path / "copy.gguf"
        copy.write_bytes(b"GGUF one")
        assert gguf.converted(copy) == first
    file.write_bytes(b"GGUF two")
    assert gguf.converted(file) != first
    file.write_bytes(b"GGUF one")
    assert gguf.converted(file) == first
    assert made == [b"GGUF one", b"GGUF two"]


def test_a_count_beyond_the_file_is_refused_at_once(tmp_path):
    """GGUFReader loops over the count that the header announces: a file of 100 bytes could keep it busy for days."""
    key = struct.pack("<Q4sIIQ", 4, b"list", 9, 6, 2**40)
    for name, header in (
        ("array", struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + key),
        ("array of big-endian order", struct.pack(">4sIQQQ4sIIQ", b"GGUF", 3, 0, 1, 4, b"list", 9, 6, 2**40)),
        ("strings", struct.pack("<4sIQQQ4sIIQ", b"GGUF", 3, 0, 1, 4, b"list", 9, 8, 2**40)),
        ("keys", struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60)),
        ("tensors", struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0)),
        ("length", struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**62) + b"name"),
        ("type", struct.pack("<4sIQQQ4sI", b"GGUF", 3, 0, 1, 4, b"list", 77)),
    ):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(header)
        with pytest.raises(ModelFileError, match=rf"{name}\.gguf: truncated or damaged"):
            gguf.check_complete(file)
