"""Loading: nothing runs that was not asked for, and readers loaded at the same time are the same."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, random_sequences, tiny_llama
from safetensors.torch import load_file, save_file

from fastreader import Reader
from fastreader.errors import FastreaderError, ModelFileError, ModelNotFoundError
from fastreader.models.loading import find

CODE = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own_llama"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def hostile(tmp_path):
    """A model folder that brings code. `mark` exists once the code has run."""
    folder, mark = tmp_path / "model", tmp_path / "mark"
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own_llama"
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, mark


BOTH = """
from pathlib import Path
import fastreader
from fastreader.errors import UnsupportedModelError
try:
    fastreader.Reader.load({folder!r})
except UnsupportedModelError as error:
    print(Path({mark!r}).exists(), error)
fastreader.Reader.load({folder!r}, trust_remote_code=True)
"""


def test_code_of_a_model_folder_runs_only_when_asked_for_whatever_standard_input_holds(hostile, monkeypatch, tmp_path):
    folder, mark = hostile
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    load = BOTH.format(folder=str(folder), mark=str(mark))
    done = subprocess.run([sys.executable, "-c", load], input="y\ny\ny\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False") and "needs code that it brings" in done.stdout
    assert "trust_remote_code=True" in done.stdout
    assert mark.exists()


def test_files_with_more_layers_than_the_config_counts_are_refused(tmp_path):
    tiny_llama(num_hidden_layers=3).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(ModelFileError, match=r"counts 2 layers, the files hold more: model.layers.2"):
        Reader.load(tmp_path)


def test_weights_that_no_layer_resembles_are_ignored(tmp_path):
    """Towers of a multimodal checkpoint, say."""
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["vision.layers.7.weight"] = torch.zeros(2, 2)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert Reader.load(tmp_path).max_length == 2048


def test_a_damaged_weight_is_a_damaged_file_and_not_an_unknown_architecture(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][3] = float("inf")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight has values that are not finite"):
        Reader.load(tmp_path)


def test_a_hub_that_cannot_be_reached_is_reported_at_once(monkeypatch):
    def refuse(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(find.socket, "create_connection", refuse)
    monkeypatch.setattr(find, "getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(ModelNotFoundError, match=r"nosuch/model: not a folder.*cannot be reached: no route to host"):
        Reader.load("nosuch/model")


def loads_at_once(folder, threads, rounds, precision="fast"):
    """Return the readers of all threads and rounds. An error in a thread is raised."""
    readers, errors = [], []

    def load():
        try:
            readers.append(Reader.load(folder, device="cpu", precision=precision, check="full"))
        except Exception as error:  # raised below, in the main thread
            errors.append(error)

    for _ in range(rounds):
        running = [threading.Thread(target=load) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    if errors:
        raise errors[0]
    return readers


def check_same(folder, readers, count):
    assert len(readers) == count
    alone = Reader.load(folder, device="cpu")
    sequences = random_sequences(np.random.default_rng(1), 261)
    want = alone.score(sequences)
    for reader in readers:
        assert reader.describe() == {**alone.describe(), "check": "full"}
        np.testing.assert_array_equal(reader.score(sequences).logprob, want.logprob)


@pytest.fixture
def folder(tmp_path):
    tiny_llama().bfloat16().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_readers_loaded_by_several_threads_at_once_are_the_same(folder):
    check_same(folder, loads_at_once(folder, 8, 1), 8)


@pytest.mark.fuzz
def test_readers_loaded_by_several_threads_many_times(folder):
    check_same(folder, loads_at_once(folder, 8, 20), 160)


def test_a_pass_during_a_load_is_what_it_is_alone(folder):
    """transformers changes PyTorch's default type while it loads."""
    reader = Reader.load(folder, device="cpu")
    sequences = random_sequences(np.random.default_rng(2), 261)
    want = reader.score(sequences).logprob
    stop, found, errors = threading.Event(), [], []

    def score():
        while not stop.is_set():
            try:
                found.append(reader.score(sequences).logprob)
            except FastreaderError as error:
                errors.append(error)

    scoring = threading.Thread(target=score)
    scoring.start()
    loads_at_once(folder, 2, 2)
    stop.set()
    scoring.join()
    assert errors == [] and found
    for values in found:
        np.testing.assert_array_equal(values, want)
