"""Digests that distinguish models with the same name, before and after loading."""

import hashlib
import os
import shutil
import threading
from concurrent.futures import CancelledError

import pytest
import torch
from helpers import registry
from helpers.families import tiny
from helpers.support import CHAT_TEMPLATE, byte_tokenizer, tiny_llama
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastreader import Reader
from fastreader.data import fingerprints
from fastreader.data.fingerprints import model_digest, reader_name
from fastreader.models.loading import revision as loading
from fastreader.models.loading.revision import revision


@pytest.fixture
def folder(tmp_path):
    """A folder of weights that are exact in bfloat16, as in most checkpoints."""
    model = tiny_llama().bfloat16()
    with torch.no_grad():
        model.model.norm.weight[-1] = 1.234e-7  # float16 rounds it to another value
    model.save_pretrained(tmp_path / "m")
    byte_tokenizer(chat=True).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def loaded(model, **options):
    return Reader.load(model, device="cpu", **options)


def of_pair(folder, change=lambda model, tokenizer: None):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        change(model, tokenizer)
    return loaded((model, tokenizer)).revision


def test_the_revision_does_not_depend_on_how_weights_were_loaded(folder, monkeypatch):
    reader = loaded(folder)
    assert len(reader.revision) == 12
    assert reader.describe()["revision"] == reader.revision
    assert of_pair(folder) == loaded(folder, dtype="float32").revision == reader.revision
    assert loaded(folder, dtype="float16").revision != reader.revision  # other values run
    shutil.copytree(folder, folder.with_name("n"))
    assert loaded(folder.with_name("n")).revision == reader.revision
    monkeypatch.chdir(folder.parent)
    assert (loaded("./m/").name, loaded("./m/").revision) == ("m", reader.revision)


def trained(model, tokenizer):
    q = model.model.layers[1].self_attn.q_proj.weight  # a merged adapter may change one kind of matrix only
    q += 0.02 * torch.randn(q.shape, generator=torch.Generator().manual_seed(1))


def biased(model, tokenizer):
    model.model.norm.weight[-1] += 0.5


def with_another_embedding(model, tokenizer):
    model.model.embed_tokens.weight[101] += 0.125


def with_one_other_value(model, tokenizer):
    model.model.layers[0].mlp.down_proj.weight[3, 5] *= 1.01


def with_a_tiny_value(model, tokenizer):
    model.model.layers[0].input_layernorm.weight[7] = 1e-6


def with_other_roles(model, tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE + " "


def with_other_positions(model, tokenizer):
    model.config.rope_parameters["rope_theta"] = 5e5


def with_another_token(model, tokenizer):
    tokenizer.add_tokens(["<new>"])


@pytest.mark.parametrize(
    "change",
    [
        trained,
        biased,
        with_another_embedding,
        with_one_other_value,
        with_a_tiny_value,
        with_other_roles,
        with_other_positions,
        with_another_token,
    ],
)
def test_another_checkpoint_has_another_revision(folder, change):
    assert of_pair(folder, change) != of_pair(folder)


def test_a_packaged_model_has_no_revision_but_a_folder_of_its_name_does(packaged_reader, folder, monkeypatch):
    assert "revision" not in packaged_reader.describe()
    folder.rename(folder.with_name("smollm2-135m"))
    monkeypatch.chdir(folder.parent)
    assert loaded("smollm2-135m").describe()["revision"]


def test_digests_of_files_change_with_the_model(folder):
    before = model_digest(folder)
    shutil.copytree(folder, folder.with_name("n"))
    (folder / "README.md").write_text("Trained by somebody.")
    (folder / "training_args.bin").write_bytes(b"1")
    (folder / "checkpoint-1").mkdir()
    assert model_digest(folder) == model_digest(folder.with_name("n")) == before
    model = tiny_llama().bfloat16()
    with torch.no_grad():
        trained(model, None)
    model.save_pretrained(folder)
    assert model_digest(folder) != before
    config = folder.with_name("n") / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 2048', '"max_position_embeddings": 1024'))
    assert model_digest(folder.with_name("n")) != before


def test_training_files_do_not_count_and_other_tokenizers_do(folder):
    before = model_digest(folder)
    for name in ("all_results.json", "optimizer.bin", "trainer_state.json", "scheduler.bin"):
        (folder / name).write_bytes(b"1")
    assert model_digest(folder) == before
    (folder / "tokenizer.model.v3").write_bytes(b"1")
    assert model_digest(folder) != before


def settle(monkeypatch):
    """Let files count as old enough for their digests to be kept."""
    monkeypatch.setattr(fingerprints, "_SETTLED", -(10**12))


@pytest.mark.parametrize("place", [8, 100_003, 2**20 - 1])
def test_every_byte_of_a_file_counts_whatever_its_times_say(tmp_path, monkeypatch, place):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    settle(monkeypatch)
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(2**20))
    before, stat = model_digest(tmp_path), file.stat()
    with file.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"1")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert model_digest(tmp_path) != before


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    hashed = []
    monkeypatch.setattr(fingerprints, "file_digest", lambda path, _: hashed.append(path) or "a" * 64)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"1")
    for _ in range(2):  # it may change again within the resolution of its times
        assert fingerprints.kept_file_digest(file) == "a" * 64
    assert len(hashed) == 2
    settle(monkeypatch)
    for _ in range(3):
        assert fingerprints.kept_file_digest(file) == "a" * 64
    assert len(hashed) == 3
    (note,) = (tmp_path / "cache" / "digests" / "files").iterdir()
    for text in ("", "../..", "a" * 63, "A" * 64):
        note.write_text(text)
        assert fingerprints.kept_file_digest(file) == "a" * 64
    assert len(hashed) == 7
    file.rename(tmp_path / "other")
    (tmp_path / "other").rename(file)
    fingerprints.kept_file_digest(file)
    assert len(hashed) == 8


def test_files_are_hashed_while_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    paths = [tmp_path / "1", tmp_path / "2"]
    for path in paths:
        path.write_bytes(path.name.encode() * 3_000_000)
    with fingerprints.digested_meanwhile(paths) as digests:
        assert digests() == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def test_hashing_stops_when_the_load_does(tmp_path):
    endless = tmp_path / "endless"
    os.mkfifo(endless)
    fed = os.open(endless, os.O_RDWR)  # so that a reader waits for what is never written
    os.write(fed, b"1")
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(CancelledError):
        fingerprints.file_digest(endless, stopped)
    os.close(fed)
    with pytest.raises(KeyError), fingerprints.digested_meanwhile([tmp_path / "absent"]):
        raise KeyError("the load's own error, not the thread's")


def test_the_weights_of_a_folder_are_hashed_once(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    settle(monkeypatch)
    hashed = []
    own = loading.weights_digest
    monkeypatch.setattr(loading, "weights_digest", lambda *of: hashed.append(1) or own(*of))
    first = loaded(folder).revision
    assert (loaded(folder).revision, len(hashed)) == (first, 1)
    change_a_row(folder)
    assert loaded(folder).revision != first
    assert loaded(folder, dtype="float32").revision != first
    assert len(hashed) == 3


def test_weights_that_cannot_be_hashed_fail_the_load(folder, tmp_path, monkeypatch):
    """They are hashed in a thread while the model is laid out."""
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    settle(monkeypatch)

    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(loading, "weights_digest", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        loaded(folder)


def change_a_row(folder):
    """Change one row of an embedding in the file, as a fine-tuned token, with the file's size and times kept."""
    file = folder / "model.safetensors"
    stat, weights = file.stat(), load_file(file)
    weights["model.embed_tokens.weight"][101] += 2
    save_file(weights, file, metadata={"format": "pt"})
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_buffers_that_are_saved_count(tmp_path):
    """DeepSeek-V3's router has its bias in one."""
    revisions = set()
    for bias in (0.0, 0.5):
        model = registry.tiny_model("deepseek_v3", registry.patterns("deepseek_v3")[0])
        names = [name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")]
        assert names
        with torch.no_grad():
            model.get_buffer(names[0])[0] += bias
        revisions.add(revision(model, byte_tokenizer()))
    assert len(revisions) == 2


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "yarn", "linear", "default"])
def test_the_context_limit_counts_where_rotary_scaling_may_read_it(kind):
    scaling = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 24}
    scaling |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8} if kind == "longrope" else {}
    tokenizer, revisions = byte_tokenizer(), set()
    for limit in (512, 4096):
        model = tiny("Phi3", max_position_embeddings=limit)
        model.config.rope_parameters = dict(scaling)
        revisions.add(revision(model, tokenizer))
    assert len(revisions) == (2 if kind in ("longrope", "dynamic", "yarn") else 1)


def test_every_spelling_of_a_path_is_one_name(tmp_path, monkeypatch):
    (tmp_path / "here" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    written = ["m", "./m/", "../here/m", tmp_path / "here" / "m", "~/m"]
    assert {reader_name(path) for path in written} == {"m"}
    monkeypatch.chdir(tmp_path)
    assert reader_name("here/m/../m") == "here/m"
    monkeypatch.chdir(tmp_path / "here" / "m")
    assert reader_name("../../here") == str(tmp_path / "here")
    assert reader_name("someone/model") == "someone/model"
