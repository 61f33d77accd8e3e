"""Loads that cannot fit are rejected before weights are allocated, by headers and config only."""

import json
import subprocess
import sys

import pytest
from helpers.support import byte_tokenizer, tiny_llama
from typer.testing import CliRunner

from fastreader import Reader
from fastreader.cli import app
from fastreader.errors import ModelFileError, OutOfBudgetError
from fastreader.models.loading import load, sizes
from fastreader.models.machine import memory

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
    assert found["weights"].startswith(f"{own:,} as float32: ") and found["fits"] == "yes"
    monkeypatch.setattr(memory, "_machine_free", lambda: 1000)
    found = json.loads(CliRunner().invoke(app, ["info", str(folder), "--format", "json"]).stdout)["memory"]
    assert found["fits"].startswith("no; ") and "GGUF" in found["fits"]
