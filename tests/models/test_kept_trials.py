"""What trials of fused parts chose is kept, so that a later load of the same weights tries nothing."""

import json

import numpy as np
import pytest
from helpers import registry
from helpers.families import deep
from helpers.support import byte_tokenizer

from fastreader.data import fingerprints
from fastreader.models.rewriting.choices import read_choices
from fastreader.models.rewriting.fused import match, trace
from fastreader.models.rewriting.fused.step import FusedStep
from fastreader.models.rewriting.fused.trials import Trials
from fastreader.reader.reader import Reader

FAMILIES = [
    "llama",
    "gemma2",
    "gemma3_text",
    "qwen3",
    "olmo2",
    "gpt_oss",
    "lfm2",
    "mixtral",
    "phi3",
    "cohere2",
    "gpt_neo",
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "_SETTLED", -(10**12))  # however old the files are
    return tmp_path / "cache" / "trials"


def saved(folder, family):
    registry.tiny_model(family, registry.patterns(family)[0]).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def count_trials(monkeypatch):
    ran = []
    for kind, name in ((Trials, "_tried"), (FusedStep, "tried")):
        own = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, *args, own=own: ran.append(self) or own(self, *args))
    return ran


def numbers(reader):
    prompt = reader.encoder.start("two birds of")
    texts = [([1, 5, 9], [2, 7, 3]), ([1, 5, 9], [4, 4]), ([3], [8, 8])]
    (written,) = reader.generate([prompt], max_new_tokens=6)[0]
    return [*reader.score(texts).token_logprobs, written.token_ids, written.token_logprobs]


def paths(reader):
    model = reader.local_model.model
    return model.rewrites, model.forward_path, model.writing_path, str(model.model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=3)
def test_a_later_load_tries_nothing_and_runs_the_same(family, tmp_path, cache, monkeypatch):
    folder, ran = saved(tmp_path / "model", family), count_trials(monkeypatch)
    first = Reader.load(folder, device="cpu")
    assert bool(ran) == bool(list(json.loads(next(cache.iterdir()).read_text())["made"]))
    ran.clear()
    second = Reader.load(folder, device="cpu")
    assert ran == []
    assert paths(second) == paths(first)
    for got, want in zip(numbers(second), numbers(first), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_full_check_tries_again(tmp_path, cache, monkeypatch):
    folder, ran = saved(tmp_path / "model", "llama"), count_trials(monkeypatch)
    Reader.load(folder, device="cpu")
    tried = len(ran)
    Reader.load(folder, device="cpu", check="full")
    assert len(ran) == 2 * tried > 0


def test_trials_are_of_these_weights_and_this_arithmetic(tmp_path, cache, monkeypatch):
    folder, ran = saved(tmp_path / "model", "llama"), count_trials(monkeypatch)
    for options in ({}, {"precision": "exact"}, {"precision": "high"}, {"deterministic": True}):
        ran.clear()
        Reader.load(folder, device="cpu", check="off", **options)
        assert ran
    saved(folder, "qwen3")
    ran.clear()
    Reader.load(folder, device="cpu", check="off")
    assert ran


def test_a_damaged_record_of_trials_is_replaced(tmp_path, cache, monkeypatch):
    folder, ran = saved(tmp_path / "model", "gemma2"), count_trials(monkeypatch)
    want = numbers(Reader.load(folder, device="cpu", check="off"))
    (kept,) = cache.iterdir()
    right = kept.read_text()
    changed = [right.replace("gelu_tanh", "silu"), right.replace('"angles"', '"no angles"')]
    for text in ("", "[]", "{}", "null", right[:-20], *changed):
        kept.write_text(text)
        assert not read_choices(kept).known, text[:60]
        ran.clear()
        for got, expected in zip(numbers(Reader.load(folder, device="cpu", check="off")), want, strict=True):
            np.testing.assert_array_equal(got, expected)
        assert ran
        assert kept.read_text() == right


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "Gemma3, window", "Mixtral", "SmolLM3", "OPT"])
def test_layers_that_trials_leave_out_are_fused_as_those_that_ran(family, monkeypatch):
    pair = deep(family), byte_tokenizer()
    ran, own = [], trace.shortened
    monkeypatch.setattr(trace, "shortened", lambda draft: ran.append(list(draft.left_out)) or own(draft))
    short = Reader.load(pair, device="cpu", check="off")
    assert ran[-1] and len(ran[-1]) >= 3
    monkeypatch.setattr(trace, "shares_keys", lambda layers: True)
    all_tried = Reader.load(pair, device="cpu", check="off")
    assert paths(short) == paths(all_tried)
    for got, want in zip(numbers(short), numbers(all_tried), strict=True):
        np.testing.assert_array_equal(got, want)


def test_layers_that_no_choice_fits_need_no_run_of_those_left_out(monkeypatch):
    """The first and the last of each kind show it, and a mixture's other layers take long."""
    monkeypatch.setattr(match, "whole", lambda draft: pytest.fail("all layers run"))
    reader = Reader.load((deep("Mixtral"), byte_tokenizer()), device="cpu", check="off")
    assert "mixture of experts" in reader.describe()["forward"] and " layer," not in reader.describe()["forward"]
