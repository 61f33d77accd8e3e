"""Loads that cannot fit are rejected before weights are allocated, by headers and config only."""

import errno
import json
import re
import subprocess
import sys

import pytest
import transformers
from helpers.gguf_files import keys_of, tensors_of, tiny, write
from helpers.registry import ASIDE, families, patterns, tiny_config
from helpers.support import byte_tokenizer, tiny_llama
from helpers.sweep import PAGE
from typer.testing import CliRunner

from fastreader import Reader
from fastreader.cli import app
from fastreader.errors import ModelFileError, OutOfBudgetError, UnsupportedModelError
from fastreader.models.gguf import weights
from fastreader.models.loading import load, sizes
from fastreader.models.loading.find import Found
from fastreader.models.loading.options import LoadOptions
from fastreader.models.machine import memory
from fastreader.models.machine.arithmetic import ways
from fastreader.reader import reader

CLAIM = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
}


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def claim(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("values", [CLAIM, {"num_hidden_layers": 500}, {"intermediate_size": 10**9}])
def test_a_config_that_claims_more_than_the_files_hold_is_rejected_by_both_counts(folder, monkeypatch, values):
    claim(folder, **values)
    monkeypatch.setattr(load, "read", None)  # allocates weights
    with pytest.raises(ModelFileError, match=r"config\.json describes [0-9,]+ weights, the files hold [0-9,]+"):
        Reader.load(folder)


@pytest.mark.parametrize("cut", [0, 4, 8, 40])
def test_a_header_that_is_cut_is_named(folder, cut):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        sizes.stored(folder)


def test_the_count_is_that_of_the_loaded_weights(folder):
    count, size = sizes.stored(folder)
    own = sum(p.numel() for p in tiny_llama().parameters())
    assert (count, size) == (own, 4 * own)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_load_that_cannot_fit_names_what_it_takes_and_what_would_take_less(folder, monkeypatch, dtype):
    monkeypatch.setattr(memory, "_machine_free", lambda: 100_000)
    with pytest.raises(OutOfBudgetError, match=f"weights as {dtype} take .* are free.*GGUF"):
        Reader.load(folder, dtype=dtype)


@pytest.mark.parametrize(
    ("need", "fits"),
    [
        (sizes.Need(10**9, "float32", 4 * 10**9, 4 * 10**9, 0, 3 * 10**9, "cpu"), ["a quantised"]),
        (sizes.Need(10**9, "float32", 8 * 10**9, 2 * 10**9, 0, 3 * 10**9, "cpu"), ["dtype='bfloat16'", "a quantised"]),
        (sizes.Need(10**9, "bfloat16", 2 * 10**9, 2 * 10**9, 0, 10**9, "cpu"), ["a quantised"]),
        (sizes.Need(10**9, "the file's integers", 5 * 10**8, 0, 0, 4 * 10**8, "cpu"), []),
        (sizes.Need(10**9, "float32", 4 * 10**9, 0, 0, 3 * 10**9, "cuda"), ["dtype='bfloat16'", "a quantised"]),
    ],
)
def test_only_what_would_fit_is_named(need, fits, monkeypatch):
    monkeypatch.setattr(sizes.torch.cuda, "is_available", lambda: False)
    *found, last = need.ways.split(", ")
    assert [way.split(" ")[0] for way in found] == [way.split(" ")[0] for way in fits]
    assert last == f"a model of at most {need.free / 0.6e9:.1f} billion weights in a GGUF file at 4 bits"


SHORTAGES = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes"),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", [(load, "read"), (load, "place"), (reader, "check")], ids=lambda step: step[1])
def test_memory_that_ends_in_the_middle_names_what_the_load_takes(folder, monkeypatch, step, error):
    def ends(*_, **__):
        raise error

    monkeypatch.setattr(*step, ends)
    wanted = rf"{folder}: .* not fit in memory \({type(error).__name__}: .* weights as float32 take .* were free"
    with pytest.raises(OutOfBudgetError, match=wanted) as found:
        Reader.load(folder, check="full")
    assert error in (found.value.__cause__, found.value.__cause__.__cause__)


def test_another_error_than_of_memory_stays_what_it_is(folder, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EIO, "no more")

    monkeypatch.setattr(reader, "check", fails)
    with pytest.raises(OSError, match="no more"):
        Reader.load(folder, check="full")


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v counts on Linux")
def test_a_limit_of_address_space_counts_as_free_memory():
    code = (
        "import resource, torch; from fastreader.models.machine.memory import free_bytes, address_space_left as left\n"
        "before = left(); limit = 64 << 30; resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "assert before == 2**62 and 0 < left() < limit and free_bytes(torch.device('cpu')) <= left(); print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


def test_info_names_what_a_model_takes_without_loading_it(folder, monkeypatch):
    monkeypatch.setattr(load, "read", None)
    shown = CliRunner().invoke(app, ["info", str(folder), "--format", "json"])
    found = json.loads(shown.stdout)["memory"]
    own = sum(p.numel() for p in tiny_llama().parameters())
    assert found["weights"].startswith(f"{own:,} weights as float32 take ") and found["fits"] == "yes"
    monkeypatch.setattr(memory, "_machine_free", lambda: 1000)
    found = json.loads(CliRunner().invoke(app, ["info", str(folder), "--format", "json"]).stdout)["memory"]
    assert found["fits"].startswith("no; ") and "GGUF" in found["fits"]


@pytest.mark.parametrize(("products", "size"), [("bf16", 2), ("int16", 4), ("float32", 4)])
def test_info_counts_keys_and_values_as_a_reader_caches_them(folder, monkeypatch, products, size):
    if products not in ways():
        pytest.skip("this machine has no bfloat16 products")
    monkeypatch.setenv("FASTREADER_PRODUCTS", products)
    tiny_llama().bfloat16().save_pretrained(folder)
    config = tiny_llama().config
    values = 2 * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    expected = sizes.in_gib(1000 * values * config.num_hidden_layers * size)
    found = json.loads(CliRunner().invoke(app, ["info", str(folder), "--format", "json"]).stdout)["memory"]
    assert found["keys and values"] == f"{expected} for every 1000 tokens"
    model = Reader.load(folder).local_model.model
    assert sizes.in_gib(1000 * model.key_value_bytes) == expected


MODEL = tiny("llama", num_hidden_layers=2, hidden_size=64, intermediate_size=64, head_dim=16)
EXPERTS = tiny("qwen3_moe", num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
# Sizes that nothing but a count or a shape contradicts, each with all tensors and without some.
CLAIMS = [
    ("llama", MODEL, {"feed_forward_length": 2**22}),
    ("llama", MODEL, {"attention.head_count": 2**20, "attention.key_length": 8}),
    ("llama", MODEL, {"attention.key_length": 2**22}),
    ("llama", MODEL, {"attention.head_count_kv": 2**18, "attention.head_count": 2**18, "attention.key_length": 2**10}),
    ("llama", MODEL, {"expert_count": 2**20, "expert_used_count": 2}),
    ("qwen3moe", EXPERTS, {"expert_count": 2**24, "expert_used_count": 2, "expert_feed_forward_length": 16}),
    ("qwen3moe", EXPERTS, {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 2**24}),
]


@pytest.mark.parametrize("lacks", ["", "attn_q.weight", "ffn_"])
@pytest.mark.parametrize(
    ("architecture", "model", "claims"), CLAIMS, ids=lambda v: "+".join(v) if type(v) is dict else ""
)
def test_a_gguf_file_that_claims_more_than_it_holds_is_rejected_before_memory_is_taken(
    tmp_path, monkeypatch, architecture, model, claims, lacks
):
    tensors = {n: v for n, v in tensors_of(architecture, model).items() if not (lacks and lacks in n)}
    file = write(tmp_path / "claims.gguf", architecture, tensors, {**keys_of(architecture, model.config), **claims})
    monkeypatch.setattr(weights, "load", lambda *_: pytest.fail("a model is made"))
    with pytest.raises(ModelFileError, match=r"claims\.gguf"):
        Reader.load(file)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32", "file"])
def test_a_gguf_load_that_cannot_fit_names_what_it_takes(tmp_path, monkeypatch, dtype):
    tensors, keys = tensors_of("llama", MODEL), keys_of("llama", MODEL.config)
    file = write(tmp_path / "small.gguf", "llama", tensors, keys, quantise="Q8_0")
    monkeypatch.setattr(memory, "_machine_free", lambda: 10_000)
    monkeypatch.setattr(weights, "load", lambda *_: pytest.fail("a model is made"))
    kind = "the file's integers" if dtype in ("auto", "file") else dtype
    with pytest.raises(OutOfBudgetError, match=rf"small\.gguf: [0-9,]+ weights as {kind} take .* are free"):
        Reader.load(file, dtype=dtype)
    found = json.loads(CliRunner().invoke(app, ["info", str(file), "--format", "json"]).stdout)["memory"]
    assert found["fits"].startswith("no; ") and "the file's integers" in found["weights"]


def counted(config):
    return sizes.described(Found(LoadOptions("x"), "folder", source="x", config=config))


@pytest.mark.filterwarnings("ignore")
def test_every_family_is_counted():
    listed = set(re.findall(r"(?m)^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8")))
    mapped = {*transformers.MODEL_FOR_CAUSAL_LM_MAPPING, *transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING}
    for family in sorted(listed.intersection(families()) - set(ASIDE)):
        config = tiny_config(family, patterns(family)[0])
        count = counted(config)
        assert (count is None) == (type(config) not in mapped), family
        assert count is None or (count[0] > 1000 and 0 < count[1] <= count[0]), family


def test_what_stops_the_count_stops_the_load(folder, monkeypatch):
    """An error of the count is one of reading, too, which must not be what finds it."""
    monkeypatch.setattr(load, "read", lambda *_: pytest.fail("a model is made"))
    for values, error, message in [
        ({"hidden_size": "wide"}, (ModelFileError, UnsupportedModelError), "wide|hidden_size"),
        ({"num_attention_heads": 0}, ModelFileError, "damaged"),
        ({"rope_parameters": {"rope_type": "su", "factor": 2.0}}, UnsupportedModelError, "rope_type 'su'"),
        ({"hidden_act": "nonesuch"}, ModelFileError, "nonesuch"),
    ]:
        before = (folder / "config.json").read_text()
        claim(folder, **values)
        with pytest.raises(error, match=message):
            Reader.load(folder)
        (folder / "config.json").write_text(before)


def test_a_fault_of_the_count_itself_is_not_swallowed(folder, monkeypatch):
    def broken(*_arguments):
        raise AttributeError("a mistake in the count")

    monkeypatch.setattr(sizes, "on_meta", broken)
    with pytest.raises(ModelFileError, match="a mistake in the count"):
        Reader.load(folder)
