"""One name, other weights: what tells them apart, loaded or not."""

import shutil

import pytest
import torch
from support import CHAT_TEMPLATE, byte_tokenizer, tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastreader import Reader
from fastreader.identity import model_digest


@pytest.fixture
def folder(tmp_path):
    """Weights that bfloat16 holds, as checkpoints mostly are."""
    tiny_llama().bfloat16().save_pretrained(tmp_path / "m")
    byte_tokenizer(chat=True).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def loaded(model, **options):
    return Reader.load(model, device="cpu", **options)


def of_pair(folder, change=lambda model, tokenizer: None):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        change(model, tokenizer)
    return loaded((model, tokenizer)).revision


def test_the_revision_is_of_the_weights_however_they_were_loaded(folder, monkeypatch):
    reader = loaded(folder)
    assert len(reader.revision) == 12
    assert reader.describe()["revision"] == reader.revision
    assert of_pair(folder) == loaded(folder, dtype="float32").revision == reader.revision
    shutil.copytree(folder, folder.with_name("n"))
    assert loaded(folder.with_name("n")).revision == reader.revision
    monkeypatch.chdir(folder.parent)
    assert (loaded("./m/").name, loaded("./m/").revision) == ("m", reader.revision)


def trained(model, tokenizer):
    q = model.model.layers[1].self_attn.q_proj.weight  # as a merged adapter changes one kind of matrix alone
    q += 0.02 * torch.randn(q.shape, generator=torch.Generator().manual_seed(1))


def biased(model, tokenizer):
    model.model.norm.weight[-1] += 0.5


def with_other_roles(model, tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE + " "


@pytest.mark.parametrize("change", [trained, biased, with_other_roles])
def test_other_weights_or_another_chat_template_have_another(folder, change):
    assert of_pair(folder, change) != of_pair(folder)


def test_a_packaged_model_has_none_and_a_folder_of_its_name_has_one(packaged_reader, folder, monkeypatch):
    assert "revision" not in packaged_reader.describe()
    folder.rename(folder.with_name("smollm2-135m"))
    monkeypatch.chdir(folder.parent)
    assert loaded("smollm2-135m").describe()["revision"]


def test_files_of_a_model_tell_before_it_is_loaded(folder):
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


@pytest.mark.parametrize("place", [0, 1 << 20, -1])
def test_of_a_large_file_blocks_count(tmp_path, place):
    file = tmp_path / "m.gguf"
    values = bytearray(3 << 20)
    file.write_bytes(values)
    before = model_digest(file)
    shutil.copy(file, tmp_path / "n.gguf")
    assert model_digest(tmp_path / "n.gguf") == before
    for i in range(0, 1 << 14, 997):  # a matrix that training moved
        values[place - i if place < 0 else place + i] = 1
    file.write_bytes(values)
    assert model_digest(file) != before
