"""Malformed GGUF files: an error of ours that names the file, in bounded memory and time."""

import mmap
import random
import resource
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.gguf_files import keys_of, tensors_of, tiny, write

from fastreader.errors import InputError, ModelFileError, UnsupportedModelError
from fastreader.models.gguf import header
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions

OURS = (ModelFileError, UnsupportedModelError, InputError)
INTEGERS = (0, 1, 2, 7, 255, 2**16, 2**20, 2**31 - 1, 2**32 - 1)


@pytest.fixture(scope="module")
def parts():
    """The tensors and keys of a whole file."""
    model = tiny("llama", num_hidden_layers=2)
    return tensors_of("llama", model), keys_of("llama", model.config)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))


def attempt(file):
    """Load a file, and return whether that was refused by an error that names it."""
    try:
        load(LoadOptions(file, "cpu", check="off"))
    except OURS as error:
        assert file.name in str(error), error
        assert len(str(error)) < 2000
        return True
    return False


def damaged(whole, chance):
    """Return bytes with one damage: cut, or a field, a few bytes or a block replaced."""
    kind, size = chance.randrange(5), len(whole)
    header = min(size, 9000)
    if kind == 0:
        return whole[: chance.randrange(size)]
    at = chance.randrange(4, header)
    if kind == 1:
        width = chance.choice("IQ")
        value = struct.pack(f"<{width}", chance.choice(INTEGERS))
        return whole[:at] + value + whole[at + len(value) :]
    if kind == 2:
        return whole[:at] + chance.randbytes(chance.randrange(1, 9)) + whole[at + 8 :]
    if kind == 3:
        return whole[:at] + whole[at + chance.randrange(1, 64) :]
    return whole[:at] + chance.randbytes(chance.randrange(1, 64)) + whole[at:]


@pytest.mark.long
def test_damaged_bytes(tmp_path, cache, parts):
    whole = write(tmp_path / "whole.gguf", "llama", *parts).read_bytes()
    chance, file, refused = random.Random(0), tmp_path / "damaged.gguf", 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(700):
        file.write_bytes(damaged(whole, chance))
        refused += attempt(file)
    assert refused > 490  # a changed name, text or number may be as good as the old one
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


def test_impossible_values_of_keys(tmp_path, cache, parts):
    tensors, keys = parts
    file, count = tmp_path / "keys.gguf", 0
    stated = {**keys, "attention.key_length": 8, "rope.dimension_count": 8, "rope.freq_base": 1e4, "expert_count": 0}
    for key in stated:
        others = [None, "text", True, 1.5, float("nan"), float("inf"), -1.0, [1, 2], ["a"], *INTEGERS]
        for value in others:
            if value == stated[key] or (value is None and key not in keys):
                continue
            write(file, "llama", tensors, {**stated, key: value})
            count += 1
            could_be = key in ("context_length", "rope.freq_base") or "epsilon" in key or value == 8
            could_be |= key == "attention.head_count_kv" and value is None
            could_be |= key in ("expert_count", "attention.head_count_kv") or isinstance(value, list)
            assert attempt(file) or could_be, (key, value)
    assert count >= 150


def test_tensors_that_are_missing_or_of_another_shape(tmp_path, cache, parts):
    tensors, keys = parts
    file = tmp_path / "tensors.gguf"
    for name in tensors.keys() - {"output.weight"}:  # without it the embedding is the head
        write(file, "llama", {k: v for k, v in tensors.items() if k != name}, keys)
        assert attempt(file), name
    for name, values in tensors.items():
        for other in (
            values[:-1],
            values[..., :-1],
            np.concatenate([values, values]),
            values.reshape(-1),
            values[None],
        ):
            if other.shape == values.shape:
                continue
            write(file, "llama", {**tensors, name: other}, keys)
            assert attempt(file), (name, other.shape)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({"general.type": "adapter"}, "general.type is 'adapter'"),
        ({"general.type": "mmproj"}, "general.type is 'mmproj'"),
        ({"general.alignment": 3}, "general.alignment"),
        ({"split.count": 2, "split.no": 0}, "part 0"),
        ({"something.else": 1}, "something.else"),
        ({"adapter.type": "lora"}, "adapter.type"),
    ],
)
def test_other_contents_are_named(tmp_path, cache, parts, whole, message):
    file = write(tmp_path / "other.gguf", "llama", *parts, whole=whole)
    with pytest.raises(OURS, match=message):
        load(LoadOptions(file, "cpu"))


@pytest.mark.parametrize("architecture", ["clip", "bert", "mamba", "gpt2", "deepseek2", "nonesuch"])
def test_architectures_without_rules_are_refused_by_name(tmp_path, cache, parts, architecture):
    file = write(tmp_path / "other.gguf", architecture, *parts)
    with pytest.raises(UnsupportedModelError, match=f"general.architecture is '{architecture}'.*llama"):
        load(LoadOptions(file, "cpu"))


def test_a_vocabulary_alone_is_named(tmp_path, cache, parts):
    tensors, _ = parts
    file = write(tmp_path / "vocabulary.gguf", "llama", {"token_embd.weight": tensors["token_embd.weight"]}, {})
    with pytest.raises(ModelFileError, match=r"vocabulary\.gguf: lacks the key llama\.block_count"):
        load(LoadOptions(file, "cpu"))


def test_a_header_is_read_without_the_rest_of_a_large_file(tmp_path, parts, monkeypatch):
    """Under a limit of address space there may be no room for a map of the whole file."""
    mapped = []

    def counted(descriptor, length, **options):
        mapped.append(length)
        return mmap.mmap(descriptor, length, **options)

    monkeypatch.setattr(header, "mmap", SimpleNamespace(mmap=counted, ACCESS_READ=mmap.ACCESS_READ))
    file = write(tmp_path / "large.gguf", "llama", *parts)
    whole, size = header.parse(file), file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(2**33)  # sparse
    assert header.parse(file) == whole
    assert mapped == [size, 2**27]
    monkeypatch.setattr(header, "_MOST_HEADER", 2000)
    with pytest.raises(ModelFileError, match=r"large\.gguf"):
        header.parse(file)
