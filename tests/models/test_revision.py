"""Digests that distinguish models with the same name, before and after loading."""

import shutil

import pytest
import torch
from helpers.support import CHAT_TEMPLATE, byte_tokenizer, tiny_llama
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastreader import Reader
from fastreader.data.fingerprints import model_digest, reader_name


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
    assert loaded(folder, dtype="float16").revision == reader.revision
    shutil.copytree(folder, folder.with_name("n"))
    assert loaded(folder.with_name("n")).revision == reader.revision
    monkeypatch.chdir(folder.parent)
    assert (loaded("./m/").name, loaded("./m/").revision) == ("m", reader.revision)


def trained(model, tokenizer):
    q = model.model.layers[1].self_attn.q_proj.weight  # a merged adapter may change one kind of matrix only
    q += 0.02 * torch.randn(q.shape, generator=torch.Generator().manual_seed(1))


def biased(model, tokenizer):
    model.model.norm.weight[-1] += 0.5


def with_other_roles(model, tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE + " "


def with_other_positions(model, tokenizer):
    model.config.rope_parameters["rope_theta"] = 5e5


def with_another_token(model, tokenizer):
    tokenizer.add_tokens(["<new>"])


@pytest.mark.parametrize("change", [trained, biased, with_other_roles, with_other_positions, with_another_token])
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


def test_every_tensor_of_safetensors_counts(tmp_path):
    """A norm of 1 KiB in 64 MiB changes, as when only norms are trained."""
    file = tmp_path / "model.safetensors"
    tensors = {f"{i}.weight": torch.zeros(1 << 20, dtype=torch.bfloat16) for i in range(32)}
    tensors["norm.weight"] = torch.ones(512, dtype=torch.bfloat16)
    save_file(tensors, file)
    before = model_digest(tmp_path)
    tensors["norm.weight"] += 0.125
    save_file(tensors, file)
    changed = model_digest(tmp_path)
    tensors["17.weight"] += 1.0
    save_file(tensors, file)
    assert len({before, changed, model_digest(tmp_path)}) == 3


@pytest.mark.parametrize(
    "head", [b"", b"\x05", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b'{"a": {}}']
)
def test_other_files_than_safetensors_count_by_blocks(tmp_path, head):
    file = tmp_path / "model.safetensors"
    file.write_bytes(head + b"0" * 100)
    before = model_digest(file)
    file.write_bytes(head + b"0" * 99 + b"1")
    assert model_digest(file) != before


@pytest.mark.parametrize("place", [0, 100 << 20, -1])
def test_blocks_of_a_large_file_count(tmp_path, place):
    """A 576 x 576 matrix in bfloat16 changes, half a percent of the file."""
    size, span = 128 << 20, 576 * 576 * 2
    for name in ("m.gguf", "n.gguf"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert model_digest(tmp_path / "m.gguf") == model_digest(tmp_path / "n.gguf")
    with (tmp_path / "m.gguf").open("r+b") as file:
        file.seek(size - span if place < 0 else place)
        file.write(b"\x01" * span)
    assert model_digest(tmp_path / "m.gguf") != model_digest(tmp_path / "n.gguf")


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
