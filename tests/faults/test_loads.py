"""Loads that are interrupted, or whose cache folder has no room: nothing half-made stays, and the next load works."""

import errno
import io
import json
import threading

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.models.check import probe
from fastreader.models.loading import read
from fastreader.models.rewriting.fused.trials import Trials

TEXTS = [([1, 2, 3], [4, 5])]
PLACES = {
    "weights": (read, "text_model"),
    "tokenizer": (read, "_tokenizer"),
    "trials": (Trials, "_tried"),
    "check": (probe, "run_written"),
}


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    tiny_llama().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def kept(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupted_load_leaves_nothing_half_made(model, monkeypatch, place):
    before, cache = kept(model), model.parent / "cache"

    def interrupt(*_args, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*PLACES[place], interrupt)
        Reader.load(model, device="cpu")
    assert kept(model) == before
    files = kept(cache)
    assert not [name for name in files if name.endswith(".tmp") or name.startswith("checks/")]
    for name in files:
        if name.endswith(".json"):
            json.loads((cache / name).read_text(encoding="utf-8"))
    assert torch.get_default_dtype() == torch.float32
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(Reader.load(model, device="cpu")), daemon=True)
    thread.start()  # a lock that was left would stop it
    thread.join(120)
    assert loaded[0].describe()["check"] == "full"
    assert torch.isfinite(torch.tensor(loaded[0].score(TEXTS).token_logprobs[0])).all()


def test_a_full_disk_keeps_nothing_and_changes_no_number(model, monkeypatch):
    want = Reader.load((tiny_llama(), byte_tokenizer()), device="cpu").score(TEXTS).token_logprobs[0]
    full = io.TextIOWrapper.write

    class Full(io.TextIOWrapper):
        def write(self, text):
            full(self, text[:1])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(io, "TextIOWrapper", Full)
        reader = Reader.load(model, device="cpu")
        assert reader.describe()["check"] == "full"
    assert kept(model.parent / "cache") == []
    assert reader.score(TEXTS).token_logprobs[0] == pytest.approx(want, abs=1e-6)
