"""PassageCache under what may happen between two look-ups: files that go, weights that change, little memory."""

import gc
import importlib
import sys
import weakref
from collections.abc import Sequence

import pytest
import torch
from helpers.support import tiny_llama
from reader.test_passage_cache import QUESTIONS, TEXTS, Shelf, close, exact
from torch import nn

import fastreader as fr
from fastreader.errors import InputError, NotReloadableError
from fastreader.models.loading.weights_state import WeightsState, code_of
from fastreader.models.passage_cache.folder import PassageFolder
from fastreader.models.passes.key_values import KeyValues

PAIRS, ENDS = [([5, 6, 7, *[10 + i] * 12, 8], [9, 11]) for i in range(3)], [(3, 15)] * 3


@pytest.fixture(scope="module")
def reader():
    return exact("Llama")


@pytest.mark.parametrize("gone", [True, False])
def test_a_file_that_goes_while_it_is_opened_is_read_as_a_passage(reader, gone, tmp_path, monkeypatch, caplog):
    """PyTorch opens a file twice: a prune may come between."""
    reader.with_cache(fr.PassageCache(folder=tmp_path)).score(PAIRS, ends=ENDS)
    opened = []

    def from_file(name, *_, **__):
        opened.append(name)
        if gone:
            (tmp_path / name).unlink()
        raise RuntimeError(f"unable to open file <{name}>")

    files = sorted(tmp_path.glob("*/*.safetensors"))
    with monkeypatch.context() as patch:
        patch.setattr(torch.UntypedStorage, "from_file", from_file)
        close(reader.with_cache(fr.PassageCache(folder=tmp_path)).score(PAIRS, ends=ENDS), reader.score(PAIRS))
    assert opened and ("cannot be read" in caplog.text) is not gone
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 4 - gone
    close(reader.with_cache(fr.PassageCache(folder=tmp_path)).score(PAIRS, ends=ENDS), reader.score(PAIRS))
    assert sorted(tmp_path.glob("*/*.safetensors")) == files


@pytest.mark.parametrize("error", [MemoryError("none left"), torch.OutOfMemoryError("none left")])
def test_without_memory_to_write_the_numbers_are_returned(reader, error, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise error

    cached = reader.with_cache(fr.PassageCache(1, tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("fastreader.models.passage_cache.folder.write_stored", fail)
        close(cached.score(PAIRS, ends=ENDS), reader.score(PAIRS))
    assert "no memory to write a passage (none left)" in caplog.text
    cached.score(PAIRS, ends=ENDS)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 4  # later ones are written


@pytest.mark.parametrize("family", ["Llama", "jamba", "mamba2"])
def test_costs_read_no_file_and_move_nothing(family, tmp_path):
    reader = exact(family)
    asked = {"candidates": ["Nile", "a sea"], "query_likelihood": True}
    fr.rerank(reader, QUESTIONS[1], TEXTS, cache=fr.PassageCache(folder=tmp_path))
    for most in (1, 1 << 30):
        cache = fr.PassageCache(most, tmp_path)
        for _ in range(2):
            before, order = cache.info(), list(cache.entries._held)
            cost = fr.permutation_cost(reader, QUESTIONS[0], TEXTS, **asked, cache=cache)
            assert cache.info() == before and list(cache.entries._held) == order
            assert cost == fr.score_permutations(reader, QUESTIONS[0], TEXTS, **asked, cache=cache).stats
            assert cost.cached_tokens > 0


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "jamba", "mamba2"])
@pytest.mark.parametrize("stored", ["exact", "int8"])
def test_what_passages_take_is_known_beforehand(family, stored):
    reader, cache = exact(family), fr.PassageCache(stored=stored)
    texts = [*TEXTS, TEXTS[0], ""]
    before = fr.passages_cost(reader, iter(texts), cache)
    assert (before.known, before.new, before.left_out) == (0, 3, 1)
    assert fr.cache_passages(reader, texts, cache) == 1
    assert cache.info().nbytes == before.nbytes
    after = fr.passages_cost(reader, [*TEXTS, "Another one."], cache)
    assert (after.known, after.new, after.left_out) == (3, 1, 0) and 0 < after.tokens < before.tokens
    assert after.to_dict()["token_bytes"] == before.token_bytes
    held = cache.info().nbytes
    fr.cache_passages(reader, ["Another one."], cache)
    assert cache.info().nbytes - held == after.nbytes


class Lazy(Sequence):
    """Pairs that are made each time they are asked for."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, place):
        context, continuation = self.pairs[place]
        return list(context), list(continuation)


def test_pairs_that_are_made_when_asked_for(reader):
    """The identity of a list that is gone is that of another soon."""
    shelf, cached = Shelf(7), reader.with_cache(fr.PassageCache())
    for _ in range(8):
        pairs, ends = shelf.call()
        close(cached.score(Lazy(pairs), ends=ends), reader.score(pairs))


def test_one_new_passage_is_copied_at_a_time(reader, monkeypatch):
    part, copies, most = KeyValues.part, [], []

    def counted(*given):
        gc.collect()
        copies[:] = [each for each in copies if each() is not None]
        most.append(len(copies))
        found = part(*given)
        copies.append(weakref.ref(found))
        return found

    monkeypatch.setattr(KeyValues, "part", counted)
    reader.with_cache(fr.PassageCache(1)).score(PAIRS, ends=ENDS)
    assert len(most) == 4 and max(most) <= 1


def test_a_readers_folder_says_whose_it_is_whatever_was_removed(reader, tmp_path):
    cached = reader.with_cache(fr.PassageCache(1, tmp_path))
    cached.score(PAIRS[:1], ends=ENDS[:1])
    (mark,) = tmp_path.glob("*/reader.json")
    mark.unlink()
    cached.score(PAIRS[1:2], ends=ENDS[:1])
    assert [each.entries for each in PassageFolder(tmp_path, 1 << 40).readers()] == [3]


@pytest.mark.parametrize(("on_cpu", "memory", "wanted"), [(True, 1, 0), (False, 1, 2), (False, 1 << 30, 2)])
def test_files_that_go_to_a_device_are_planned_for(on_cpu, memory, wanted, tmp_path, monkeypatch):
    """On a device a pass holds all that it starts from."""
    reader, planned = exact("Llama"), []
    local, plan = reader.local_model, type(reader.local_model).plan

    def seen(self, *given, new_tokens=0, **options):
        planned.append(new_tokens)
        return plan(self, *given, new_tokens=new_tokens, **options)

    reader.with_cache(fr.PassageCache(folder=tmp_path)).score(PAIRS, ends=ENDS)
    cached = reader.with_cache(fr.PassageCache(memory, tmp_path))
    monkeypatch.setattr(type(local), "plan", seen)
    known = cached._known
    monkeypatch.setattr(cached, "_known", lambda *given: _elsewhere(known(*given), on_cpu))
    cached.score(PAIRS, ends=ENDS)
    assert planned == [wanted]
    cached.score(PAIRS, ends=ENDS)
    assert planned[1:] == [0 if memory > 1 else wanted]  # those in memory are there already


def _elsewhere(known, on_cpu):
    known._on_cpu = on_cpu
    return known


def test_a_value_that_changed_past_its_version_is_seen_on_a_device():
    """As `fingerprint` gathers them there, here of parameters on the CPU."""
    weights, state = list(tiny_llama().parameters()), WeightsState()
    weights[3].data = weights[3].data.double()
    before = state.middles(weights)
    assert state.middles(weights) == before and sum(map(len, before)) == len(weights)
    versions = [weight._version for weight in weights]
    weights[5].data.mul_(2)
    assert [weight._version for weight in weights] == versions
    changed = state.middles(weights)
    assert changed != before
    weights[4].data = weights[4].data * 3  # other memory: the views are made again
    assert state.middles(weights) not in (before, changed)


def test_the_code_of_a_model_belongs_to_it(tmp_path, monkeypatch):
    """Of classes that came with a model, which another file may define tomorrow."""
    (tmp_path / "its_own_modelling.py").write_text("from torch import nn\nclass Own(nn.Linear): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for line in ("", "\n# changed\n"):
        with (tmp_path / "its_own_modelling.py").open("a") as file:
            file.write(line)
        sys.modules.pop("its_own_modelling", None)
        found.append(code_of(nn.Sequential(importlib.import_module("its_own_modelling").Own(2, 2))))
    assert found[0] != found[1] and all(found)
    assert code_of(tiny_llama()) == ""
    monkeypatch.setattr(
        sys.modules["its_own_modelling"], "__file__", str(tmp_path / "archive.zip/its_own_modelling.py")
    )
    assert code_of(sys.modules["its_own_modelling"].Own(2, 2)) not in ("", *found)


def test_a_cache_is_refused_where_nothing_is_kept(reader):
    with pytest.raises(InputError, match="cache: expected None, since 'yes_no' reads the passage after the question"):
        fr.rerank(reader, QUESTIONS[0], TEXTS, method="yes_no", cache=fr.PassageCache())


def test_a_reader_with_a_cache_has_what_the_reader_has(model):
    loaded = fr.Reader.load(model, check="off")
    with loaded.with_cache(fr.PassageCache(5)) as cached:
        assert (cached.model, cached.tokenizer, cached.device) == (loaded.model, loaded.tokenizer, loaded.device)
        assert cached.arithmetic is loaded.arithmetic
        assert repr(cached) == f"{loaded!r} with PassageCache(0 of 5 bytes)"
        with pytest.raises(AttributeError):
            _ = cached.nothing
    with pytest.raises(fr.FastreaderError, match="was closed"):
        loaded.score([([5], [6])])


def test_a_reader_with_a_cache_goes_to_actors_apart_from_it(reader):
    from fastreader.integrations.ray.actor import ReaderReference

    with pytest.raises(InputError, match="reader: expected the reader without its cache, and the cache as cache="):
        ReaderReference.of(reader.with_cache(fr.PassageCache()))
    with pytest.raises(NotReloadableError):
        ReaderReference.of(reader)
