"""Tokenizers of model folders whose files transformers reads otherwise than the model was trained."""

from __future__ import annotations

import json
import logging

import pytest
from helpers.support import byte_tokenizer, tiny_llama
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, MistralConfig, PreTrainedTokenizerFast

from fastreader import Reader
from fastreader.errors import UnsupportedModelError
from fastreader.models.loading.find import Found
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.read import _LLAMA3_SPLIT, _tokenizer

TEXTS = ["It was 1984", "HelloWorld 12345", "IT'S 7", "東京2020", "a\n\n12", "plain words"]


def old_mistral(folder, split, *, version="4.50.3", kind="mistral"):
    """Write a tokenizer of more than 100,000 tokens, as transformers before 5 converted Mistral's, and its config."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(["It was 1984, then 2020 and 12345.", "Hello world, it's IT'S done"] * 20, trainer)
    content = json.loads(inner.to_str())
    words = content["model"]["vocab"]
    words |= {f"zz{i}zz": i for i in range(len(words), 100_100)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content))).save_pretrained(folder)
    config = MistralConfig(vocab_size=100_100).to_dict() | {"transformers_version": version, "model_type": kind}
    (folder / "config.json").write_text(json.dumps(config))


def loaded(folder):
    access = {"local_files_only": True, "trust_remote_code": False}
    return _tokenizer(Found(LoadOptions(folder), "folder", source=str(folder), tokenizer=str(folder), access=access))


OTHER_SPLIT = r"\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+"


@pytest.mark.parametrize(
    ("split", "given", "fixed"),
    [
        (_LLAMA3_SPLIT, {}, True),
        (_LLAMA3_SPLIT, {"version": "5.2.0"}, False),
        (_LLAMA3_SPLIT, {"kind": "llama"}, False),
        (OTHER_SPLIT, {}, False),  # transformers would replace this one too
    ],
)
def test_the_split_of_an_old_mistral_tokenizer_is_mistrals(tmp_path, caplog, split, given, fixed):
    old_mistral(tmp_path, split, **given)
    with caplog.at_level(logging.WARNING, "fastreader"):
        ours = loaded(tmp_path)
    named = any("saved with Llama 3's split" in record.message for record in caplog.records)
    theirs = AutoTokenizer.from_pretrained(tmp_path, **({"fix_mistral_regex": True} if fixed else {}))
    assert [ours(text)["input_ids"] for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    assert named == fixed
    assert fixed == (ours.tokenize("1984") == ["1", "9", "8", "4"])


def test_dropout_in_a_folder_is_switched_off(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tiny_llama().save_pretrained(tmp_path)
    assert loaded(tmp_path).backend_tokenizer.model.dropout is None


def with_mistral_common(monkeypatch):
    """Let transformers choose mistral-common's tokenizer as it does where that is installed."""

    class MistralCommonBackend(PreTrainedTokenizerFast):
        pass

    given = AutoTokenizer.from_pretrained

    def choose(folder, *_, mistral_format=None, **options):
        tokenizer = given(folder, **options)
        if mistral_format is not False and (folder_of(folder) / "tekken.json").is_file():
            tokenizer.__class__ = MistralCommonBackend
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", choose)


def folder_of(name):
    from pathlib import Path

    return Path(name)


@pytest.mark.parametrize("alone", [False, True])
def test_tokenizer_json_is_read_where_mistral_common_is_installed(tmp_path, monkeypatch, alone):
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with_mistral_common(monkeypatch)
    if alone:  # a stand-in for a folder without tokenizer.json, which this transformers could not read
        tokenizer = AutoTokenizer.from_pretrained(tmp_path)
        with pytest.raises(UnsupportedModelError, match=r"mistral-common.*tokenizer\.json"):
            Reader.load((tiny_llama(), tokenizer), check="off")
    else:
        reader = Reader.load(tmp_path, device="cpu", check="off")
        assert type(reader.tokenizer).__name__ != "MistralCommonBackend"
        assert reader.encoder.start("Hello") == byte_tokenizer()("Hello")["input_ids"]
