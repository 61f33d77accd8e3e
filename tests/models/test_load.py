import json
import os
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
import torch
from helpers.support import PACKAGED, byte_tokenizer, one_by_one, tiny_llama
from transformers import AutoModelForCausalLM

from fastreader import Reader
from fastreader.cli.options import model_settings
from fastreader.core.progress import silence_progress_bars
from fastreader.data.files import cache_dir
from fastreader.errors import (
    FastreaderError,
    InputError,
    ModelFileError,
    ModelNotFoundError,
    OutOfBudgetError,
    UnsupportedModelError,
)
from fastreader.models.loading import decide, find
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.packaged import is_cached
from fastreader.models.machine import arithmetic


def hub_cache(home, name="someone/tiny"):
    """Make a hub cache as huggingface_hub leaves it after a download."""
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    tiny_llama().save_pretrained(snapshot)
    byte_tokenizer().save_pretrained(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    return snapshot


LOAD = """
import os, socket, sys, time
time.sleep = lambda seconds: None  # the hub client waits between attempts
def refuse(*a, **k): raise ConnectionError("network touched")
socket.socket.connect = refuse; socket.getaddrinfo = refuse
from fastreader import Reader
from fastreader.errors import FastreaderError
cache, *names = sys.argv[1:]
for name in names:
    if "/" not in name:
        os.environ["FASTREADER_CACHE"] = cache
    try:
        print(Reader.load(name, device="cpu").loglikelihood([("ab", "c")])[0].num_tokens)
    except FastreaderError as error:
        print(type(error).__name__, *str(error).split())
"""


@pytest.fixture(scope="module")
def loaded_alone(tmp_path_factory):
    """What a process without a network prints of each cached model."""
    home = tmp_path_factory.mktemp("home")
    for name in ("whole", "incomplete", "pickled", "sharded", "damaged"):
        snapshot = hub_cache(home, f"someone/{name}")
        if name in ("incomplete", "pickled", "sharded"):
            (snapshot / "model.safetensors").unlink()
    damage = sharded('{"weight_map": {"a')
    damage(snapshot)
    for name, file in (("pickled", "pytorch_model.bin"), ("sharded", "pytorch_model-00001-of-00001.bin")):
        (snapshot,) = (home / "hub" / f"models--someone--{name}" / "snapshots").iterdir()
        torch.save(tiny_llama().state_dict(), snapshot / file)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tiny_llama().state_dict(), file)}
    (snapshot / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    names = [*(f"someone/{name}" for name in ("whole", "incomplete", "pickled", "sharded", "damaged"))]
    names += [PACKAGED] * is_cached(PACKAGED)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, cache_dir(), *names],
        env={**environment, "HF_HOME": str(home), "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(names, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("name", ["whole", "pickled", "sharded"])
@pytest.mark.long(keep=1)
def test_a_hub_model_in_the_cache_touches_no_network(loaded_alone, name):
    assert loaded_alone[f"someone/{name}"] == "1"


def test_a_packaged_reader_in_the_cache_touches_no_network(loaded_alone, packaged_folder):
    assert loaded_alone[PACKAGED] == "1"


def test_an_incomplete_hub_cache_goes_online_and_reports_the_failure(loaded_alone):
    assert loaded_alone["someone/incomplete"].startswith("ModelNotFoundError")


def test_a_damaged_index_in_the_hub_cache_is_named(loaded_alone):
    told = loaded_alone["someone/damaged"]
    assert told.startswith("ModelFileError") and "index.json: damaged" in told


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def load_folder(folder):
    return load(LoadOptions(folder, "cpu", "auto", "fast")).model


def change_weights(folder, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_checkpoint_that_lacks_a_weight_raises(folder):
    change_weights(folder, lambda w: w.pop("model.layers.0.mlp.up_proj.weight"))
    with pytest.raises(ModelFileError, match=r"1 weights.*model\.layers\.0\.mlp\.up_proj\.weight"):
        load_folder(folder)


def test_a_checkpoint_with_a_weight_of_another_shape_raises(folder):
    change_weights(folder, lambda w: w.update({"model.norm.weight": torch.zeros(2)}))
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is \[2\], expected \[64\]"):
        load_folder(folder)


def test_tied_weights_may_be_missing(tmp_path):
    from safetensors.torch import load_file

    model = tiny_llama(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert torch.equal(load_folder(tmp_path).lm_head.weight, model.lm_head.weight)


def cut(name, at=60):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:at])


def sharded(index):
    def change(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(index)

    return change


def pickled_and_cut(folder):
    (folder / "model.safetensors").unlink()
    torch.save(tiny_llama().state_dict(), folder / "pytorch_model.bin")
    cut("pytorch_model.bin", 1000)(folder)


def token_id(number):
    """Give one token of the vocabulary another id."""

    def change(folder):
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        vocabulary = content["model"]["vocab"]
        vocabulary[next(iter(vocabulary))] = number
        path.write_text(json.dumps(content))

    return change


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


POINTED = ("model.safetensors", "tokenizer.json", "config.json")


def pointer(name):
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"
    return lambda folder: (folder / name).write_text(text)


def without_index(stem, kind):
    def change(folder):
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").unlink()
        for part in (1, 2):
            (folder / f"{stem}-0000{part}-of-00002.{kind}").write_bytes(whole)

    return change


def config(**values):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (cut("config.json"), ModelFileError, r"config\.json: damaged"),
        (lambda f: (f / "config.json").write_text("[]"), ModelFileError, r"config\.json: damaged"),
        (cut("model.safetensors", 1000), ModelFileError, "damaged"),
        (cut("tokenizer.json", 300), ModelFileError, "damaged"),
        (pickled_and_cut, ModelFileError, "damaged"),
        (sharded('{"weight_map": {"a'), ModelFileError, r"index\.json: damaged"),
        (sharded('{"metadata": {}}'), ModelFileError, "no weight_map"),
        (sharded('{"metadata": {}, "weight_map": {"a": "b.safetensors"}}'), ModelNotFoundError, r"b\.safetensors"),
        (sharded('{"metadata": {}, "weight_map": {"a": 1}}'), ModelFileError, "no weight_map of file names"),
        (sharded('{"metadata": {}, "weight_map": {"a": ["b"]}}'), ModelFileError, "no weight_map of file names"),
        (without_index("model", "safetensors"), ModelNotFoundError, r"lacks model\.safetensors\.index\.json.*2 files"),
        (without_index("pytorch_model", "bin"), ModelNotFoundError, r"lacks pytorch_model\.bin\.index\.json.*2 files"),
        *((pointer(name), ModelFileError, rf"{name}: a Git LFS pointer.*git lfs pull") for name in POINTED),
        *((config(num_hidden_layers=n), ModelFileError, f"num_hidden_layers: expected.*{n}") for n in (0, -1, 10**7)),
        (config(rope_parameters={"rope_type": "su", "factor": 2.0}), UnsupportedModelError, "rope_type 'su'"),
        (config(rope_scaling={"type": "strange", "factor": 2.0}), UnsupportedModelError, "rope_type 'strange'"),
        (token_id(2**31), ModelFileError, "token 2147483648"),
        (without("model.safetensors"), ModelNotFoundError, "its weights"),
        (without("tokenizer.json"), ModelNotFoundError, r"its tokenizer \(tokenizer\.json"),
        (lambda f: (f / "config.json").write_text('{"model_type": "none"}'), UnsupportedModelError, "none"),
    ],
)
def test_damaged_and_missing_files_are_named(folder, change, error, message):
    change(folder)
    with pytest.raises(error, match=message):
        load_folder(folder)


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "kernels-community/flash-attn3"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_the_attention_that_a_config_names_is_not_needed(folder, key, name):
    config(**{key: name})(folder)
    sequences = [([5, 9, 17], [3, 4])]
    reader = Reader.load(folder, device="cpu", precision="exact")
    np.testing.assert_allclose(
        reader.score(sequences).token_logprobs[0], one_by_one(tiny_llama(), sequences)[0], atol=1e-5
    )


EOS = [[[1, 2]], 2.0, [2.0], "72", ["72"], {"eos": 2}, [2, None], True]


@pytest.mark.parametrize("eos", EOS, ids=str)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_end_tokens_that_are_no_ids_are_named(folder, file, eos):
    if file == "config.json":
        (folder / "generation_config.json").unlink()
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, "eos_token_id": eos}))
    with pytest.raises(FastreaderError, match=r"eos_token_id|config\.json"):
        Reader.load(folder, device="cpu", check="off")


@pytest.mark.parametrize(("eos", "ends"), [(7, {7, 1}), ([2, 7], {1, 2, 7}), (None, {1})])
def test_end_tokens_are_those_of_the_generation_config_and_the_tokenizer(folder, eos, ends):
    config(eos_token_id=None)(folder)
    content = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**content, "eos_token_id": eos}))
    assert Reader.load(folder, device="cpu", check="off").end_tokens == ends


@pytest.mark.parametrize(
    ("scheme", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "yarn", "factor": 4.0}, 256),
        ({"rope_type": "linear", "factor": 4.0}, 256),
        ({"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        (
            {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            64,
        ),
    ],
)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_a_scaling_extends_the_context_as_it_says(tmp_path, scheme, length, spelling):
    tiny_llama(max_position_embeddings=64).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    own = {**scheme, "rope_theta": 10000.0} if spelling == "rope_parameters" else scheme
    content = json.loads((tmp_path / "config.json").read_text())
    content.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps({**content, spelling: own, "rope_theta": 10000.0}))
    reader = Reader.load(tmp_path, device="cpu", precision="exact", check="off")
    assert reader.max_length == length
    ids = [(i * 37) % 250 + 5 for i in range(length)]
    sequences = [(ids[:-4], ids[-4:])]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    np.testing.assert_allclose(reader.score(sequences).token_logprobs[0], one_by_one(theirs, sequences)[0], atol=1e-4)


def test_a_scheme_for_each_layer_type_states_the_extended_context():
    """As Gemma 3 of 4B and more, whose max_position_embeddings is the length after its linear scaling."""
    from transformers import Gemma3TextConfig

    from fastreader.models.config.facts import context_length, rotary_regimes

    scaled = Gemma3TextConfig(max_position_embeddings=1000, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert context_length(scaled, rotary_regimes(scaled)) == 1000


def test_a_lack_of_memory_during_a_load_is_named(folder, monkeypatch):
    def exhausted(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: 27 GB")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", exhausted)
    with pytest.raises(OutOfBudgetError, match=r"the model does not fit in memory.*27 GB"):
        load_folder(folder)


def test_an_adapter_beside_the_weights_is_merged(folder):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(tiny_llama(), config)
    adapted.save_pretrained(folder)
    reader = Reader.load(folder, device="cpu", precision="exact")
    assert not any("lora" in name for name, _ in reader.model.named_modules())
    ids = torch.tensor([[5, 9, 17, 3]])
    with torch.no_grad():
        wanted = adapted(ids).logits[0, 2].log_softmax(-1)[3]
    (found,) = reader.loglikelihood([(ids[0, :3].tolist(), [3])])
    assert found.logprob == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("other", [None, 5, "", [1, 2], torch.nn.Linear(2, 2)])
def test_other_types_than_a_model_raise(other):
    with pytest.raises(InputError, match="expected a name, a path or a"):
        Reader.load(other)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "got 0 values"),
        ((1, 2, 3), r"got 3 values: \(int, int, int\)"),
        ((None, byte_tokenizer()), "a transformers model first"),
        ((byte_tokenizer(), tiny_llama()), "a transformers model first"),
        ((tiny_llama(), None), "a transformers tokenizer second"),
        ((tiny_llama(), "gpt2"), "a transformers tokenizer second"),
    ],
)
def test_a_pair_is_a_model_and_a_tokenizer(given, message):
    with pytest.raises(InputError, match=message):
        load(LoadOptions(given))


def test_a_converted_copy_keeps_its_buffers_and_leaves_the_model():
    model = tiny_llama(tie_word_embeddings=True)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    assert not torch.equal(frequencies.bfloat16().float(), frequencies)
    loaded = load(LoadOptions((model, byte_tokenizer()), dtype="bfloat16"))
    copied = loaded.model
    assert {p.dtype for p in copied.parameters()} == {torch.bfloat16} == {loaded.arithmetic.dtype}
    assert copied.dtype == torch.bfloat16 and copied.lm_head.weight is copied.model.embed_tokens.weight
    assert torch.equal(copied.model.rotary_emb.inv_freq, frequencies)
    assert {p.dtype for p in model.parameters()} == {torch.float32} and model.config.dtype != torch.bfloat16
    assert load(LoadOptions((model, byte_tokenizer()))).model is model


@pytest.mark.parametrize(
    ("asked", "fits"), [("cuda:1", False), ("cpu", False), ("cuda:0", True), ("cuda", True), ("auto", True)]
)
def test_a_borrowed_model_stays_on_its_own_device(monkeypatch, asked, fits):
    def resolve(device, dtype, wanted, checkpoint, products):
        return arithmetic.Arithmetic(torch.device(device), checkpoint, "fast", "for this test")

    model = tiny_llama()
    monkeypatch.setattr(decide, "resolve", resolve)
    monkeypatch.setattr(type(model), "device", torch.device("cuda:0"))
    if fits:
        assert load(LoadOptions((model, byte_tokenizer()), asked)).model is model
    else:
        with pytest.raises(InputError, match="which is on cuda:0, got"):
            load(LoadOptions((model, byte_tokenizer()), asked))


@pytest.mark.parametrize("positions", [1, 2, 3, 4, 9, 27])
def test_a_model_of_few_positions(positions):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=261, n_embd=32, n_layer=1, n_head=2, n_positions=positions)
    reader = Reader.load((GPT2LMHeadModel(config).eval(), byte_tokenizer()), device="cpu", precision="exact")
    assert reader.max_length == positions
    assert reader.checked is not None and reader.checked.logprob < 1e-3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (torch.bfloat16, "fast", "bf16")),
        ({"precision": "high"}, (torch.bfloat16, "high", "bf16x3")),
        ({"precision": "exact"}, (torch.bfloat16, "exact", "float32")),
        ({"dtype": "fp32"}, (torch.float32, "fast", "bf16")),
        ({"dtype": torch.float64}, (torch.float64, "exact", "torch")),
        ({"products": "torch"}, (torch.bfloat16, "exact", "torch")),
    ],
)
def test_arithmetic(monkeypatch, arguments, expected):
    rates = {"float32": 300.0, "int16": 500.0, "bf16": 3000.0, "bf16x3": 1200.0}
    monkeypatch.setattr(arithmetic, "machine_rates", lambda: rates)
    values = {"device": "cpu", "dtype": "auto", "precision": "fast", **arguments}
    got = arithmetic.resolve(checkpoint=torch.bfloat16, **values)
    assert (got.dtype, got.precision, got.products) == expected and got.reason


def test_a_cuda_index_that_does_not_exist_raises(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert arithmetic.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="one of the 2 CUDA devices, cuda:0 to cuda:1, got 'cuda:2'"):
        arithmetic.resolve_device("cuda:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_raises():
    with pytest.raises(InputError, match="no CUDA device"):
        arithmetic.resolve_device("cuda")


def test_only_progress_bars_are_silenced(capsys):
    with silence_progress_bars():
        print("\r 50%", end="", file=sys.stderr)
        print("\r100%", file=sys.stderr)
        print("a warning", file=sys.stderr)
    assert capsys.readouterr().err == "a warning\n"


def test_progress_bars_stay_silenced_while_any_thread_loads(capsys):
    real = sys.stderr
    first, second = silence_progress_bars(), silence_progress_bars()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # in another order than they entered
    print("\r 50%", end="", file=sys.stderr)
    second.__exit__(None, None, None)
    assert sys.stderr is real
    assert capsys.readouterr().err == ""


def test_results_name_the_commit_of_a_hub_model(tmp_path, monkeypatch):
    snapshot = hub_cache(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_settings("someone/tiny", "auto", "fast")["revision"] == "0" * 40
    newer = snapshot.parent / ("1" * 40)
    snapshot.rename(newer)
    (newer.parents[1] / "refs" / "main").write_text("1" * 40)
    assert model_settings("someone/tiny", "auto", "fast")["revision"] == "1" * 40
    assert "revision" not in model_settings("smollm2-135m", "auto", "fast")
    assert find.commit_of("./none") == find.commit_of("none.gguf") == ""
