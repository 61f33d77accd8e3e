"""Readers pickle by reference: what they were loaded from, and no weights."""

import copy
import os
import pickle
import shutil
from pathlib import Path

import pytest
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.data.answer_cache import Cache
from fastreader.errors import FastreaderError, InputError, ModelFileError, ModelNotFoundError, NotReloadableError
from fastreader.study.cached_reader import CachedReader

REQUESTS = [("Which river is long? ", "The Nile"), ("Which river", " is wide?")]


def logprobs(reader):
    return [result.logprob for result in reader.loglikelihood(REQUESTS)]


def save(folder, **options):
    tiny_llama(**options).save_pretrained(folder)
    byte_tokenizer(chat=True).save_pretrained(folder)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device": "cpu", "dtype": "bfloat16", "precision": "high"},
        {"precision": "exact", "products": "float32", "check": "full", "deterministic": True},
        {"dtype": "float64", "precision": "exact", "check": "off", "trust_remote_code": True},
    ],
)
def test_a_reader_is_loaded_again_with_its_arguments(model, options):
    reader = Reader.load(model, **options)
    pickled = pickle.dumps(reader)
    assert len(pickled) < 2000  # no weights
    again = pickle.loads(pickled)
    assert type(again) is Reader and again is not reader and again.model is not reader.model
    assert again._loaded_from == reader._loaded_from
    assert {name: getattr(again._loaded_from, name) for name in options} == options
    about = reader.describe()
    if about["check"] == "full" and options.get("check") != "full":  # the first load left its verdict for the second
        about["check"] = "quick"
    assert again.describe() == about and repr(again) == repr(reader)
    assert logprobs(again) == logprobs(reader)
    assert pickle.dumps(again) == pickled


def test_a_relative_path_is_found_from_elsewhere(tmp_path, monkeypatch):
    save(tmp_path / "m")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Reader.load(Path("m")))
    monkeypatch.chdir("elsewhere")
    assert pickle.loads(pickled).name == "m"  # results of the other process carry the same name


def test_other_weights_in_the_folder_raise(tmp_path):
    save(tmp_path / "m")
    pickled = pickle.dumps(Reader.load(tmp_path / "m"))
    save(tmp_path / "m", seed=1)
    with pytest.raises(ModelFileError, match="expected the weights and the chat template of the pickled reader"):
        pickle.loads(pickled)
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(ModelNotFoundError, match=os.fspath(tmp_path / "m")):
        pickle.loads(pickled)


def test_a_reader_of_a_model_object_cannot_be_pickled(tiny_reader):
    with pytest.raises(NotReloadableError, match=r"reader: expected one .* loaded from a name .*got Reader.*model obj"):
        pickle.dumps(tiny_reader)
    assert issubclass(NotReloadableError, InputError) and issubclass(NotReloadableError, TypeError)


def test_a_closed_reader_a_session_and_a_cached_reader_cannot(model, tmp_path):
    reader = Reader.load(model)
    with reader.session("Answer") as session, pytest.raises(NotReloadableError, match="session: expected a Reader"):
        pickle.dumps(session)
    with Cache(tmp_path / "cache") as cache, pytest.raises(NotReloadableError, match="reader: expected one"):
        pickle.dumps(CachedReader(reader, cache).tree_reader())
    reader.close()
    with pytest.raises(FastreaderError, match="closed; load it again"):
        pickle.dumps(reader)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_are_rejected(model, copied):
    with pytest.raises(TypeError, match=r"cannot be copied.*share the reader"):
        copied(Reader.load(model))


def test_a_packaged_reader(packaged_reader):
    again = pickle.loads(pickle.dumps(packaged_reader))
    assert again._loaded_from.model == "smollm2-135m" and again.revision == packaged_reader.revision == ""
    assert logprobs(again) == pytest.approx(logprobs(packaged_reader), abs=1e-4)
