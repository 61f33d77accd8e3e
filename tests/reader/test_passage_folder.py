"""PassageCache(folder=...): the numbers of uncached calls after restarts, kills and damage, within the limit."""

import errno
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.support import LONG_FORMS, byte_tokenizer, tiny_llama
from reader.test_passage_cache import Shelf, close, exact

import fastreader as fr
from fastreader.errors import InputError, NotReloadableError
from fastreader.models.passage_cache import folder as folders
from fastreader.models.passage_cache.folder import PassageFolder
from fastreader.models.passage_cache.rounded import RoundedKeyValues
from fastreader.models.passes.key_values import Indices, KeyValues


@pytest.fixture(scope="module")
def reader():
    return exact("Llama")


def files_of(folder):
    return sorted(folder.glob("*/*.safetensors"))


def ask(reader, cache, shelf, calls):
    """Compare calls with uncached ones."""
    cached = reader.with_cache(cache)
    for _ in range(calls):
        pairs, ends = shelf.call()
        close(cached.score(pairs, ends=ends), reader.score(pairs))


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "jamba", "mamba2", "qwen3_next"])
@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_another_cache_finds_what_one_wrote(family, memory, tmp_path):
    """With the same bits, whether or not there is room in memory."""
    reader, header = exact(family), [5, 6, 7]
    pairs = [(header + [10 + i] * 12 + [8], [9, 11]) for i in range(3)]
    found = []
    for turn in range(2):
        cache = fr.PassageCache(memory, tmp_path / "kept")
        found.append(reader.with_cache(cache).score(pairs, ends=[(3, 15)] * 3))
        info = cache.info()
        assert (info.hits, info.misses, info.loaded, info.written) == ((0, 3, 0, 4), (3, 0, 4, 0))[turn]
        assert info.nbytes <= memory
        assert found[turn].stats.cached_tokens == (0, 39)[turn]
    again = reader.with_cache(cache).score(pairs, ends=[(3, 15)] * 3)
    assert [a.tolist() for a in again.token_logprobs] == [a.tolist() for a in found[1].token_logprobs]
    close(found[1], reader.score(pairs))
    assert len(files_of(tmp_path / "kept")) == 4
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700


def test_bits_of_memory_and_file_are_equal(reader, tmp_path):
    memory, shelf = fr.PassageCache(), Shelf(2)
    for _ in range(12):
        pairs, ends = shelf.call()
        one = reader.with_cache(memory).score(pairs, ends=ends)
        other = reader.with_cache(fr.PassageCache(1, tmp_path)).score(pairs, ends=ends)
        assert [a.tolist() for a in one.token_logprobs] == [a.tolist() for a in other.token_logprobs]
        assert one.stats == other.stats


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "swapped", "garbage", "longer"])
def test_a_damaged_file_is_removed_and_its_passage_read(reader, damage, tmp_path, caplog):
    pairs = [([5, 6, 7, *[10 + i] * 12, 8], [9, 11]) for i in range(2)]
    ends = [(3, 15)] * 2
    reader.with_cache(fr.PassageCache(folder=tmp_path)).score(pairs, ends=ends)
    rng = np.random.default_rng(1)
    for file in files_of(tmp_path):
        content = bytearray(file.read_bytes())
        for place in rng.integers(0, len(content), 5 if damage == "flipped" else 1):
            other = next(each for each in files_of(tmp_path) if each != file).read_bytes()
            flipped = content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :]
            file.write_bytes({
                "cut": content[:place], "empty": b"", "flipped": flipped, "swapped": other,
                "garbage": rng.bytes(300), "longer": content + b"more",
            }[damage])  # fmt: skip
            cache = fr.PassageCache(folder=tmp_path)
            close(reader.with_cache(cache).score(pairs, ends=ends), reader.score(pairs))
            assert cache.info().damaged == 1
            assert "the file is removed" in caplog.text
            file.write_bytes(content)
    cache = fr.PassageCache(folder=tmp_path)
    reader.with_cache(cache).score(pairs, ends=ends)
    assert (cache.info().hits, cache.info().damaged) == (2, 0)


def test_a_header_stays_with_its_passages(reader, tmp_path):
    """Also where the limit makes room, and where its file was removed while a process has it in memory."""
    header = [5, 6, 7]
    pairs = [(header + [10 + i] * 12 + [8], [9, 11]) for i in range(30)]
    probe = fr.PassageCache(folder=tmp_path / "probe")
    reader.with_cache(probe).score(pairs[:1], ends=[(3, 15)])
    size = max(file.stat().st_size for file in files_of(tmp_path / "probe"))
    cache = fr.PassageCache(folder=tmp_path / "kept", max_folder_bytes=12 * size)
    for pair in pairs:
        reader.with_cache(cache).score([pair], ends=[(3, 15)])
    assert cache.entries.folder.evicted > 0
    again = fr.PassageCache(folder=tmp_path / "kept")
    reader.with_cache(again).score(pairs[-5:], ends=[(3, 15)] * 5)
    assert (again.info().hits, again.info().misses) == (5, 0)
    PassageFolder(tmp_path / "kept", 2**40).prune(max_bytes=0)
    new = [(header + [100 + i] * 12 + [8], [9, 11]) for i in range(5)]
    reader.with_cache(cache).score(new, ends=[(3, 15)] * 5)
    again = fr.PassageCache(folder=tmp_path / "kept")
    reader.with_cache(again).score(new, ends=[(3, 15)] * 5)
    assert (again.info().hits, again.info().misses) == (5, 0)


def test_a_folder_that_fails_is_left_alone(reader, tmp_path, monkeypatch, caplog):
    """Whatever the error of a look, and where what was half written cannot be removed."""
    pairs, ends = [([5, 6, 7, *[10] * 12, 8], [9, 11])], [(3, 15)]
    want = reader.score(pairs)
    reader.with_cache(fr.PassageCache(folder=tmp_path)).score(pairs, ends=ends)
    for file in files_of(tmp_path):
        file.unlink()
        file.mkdir()
    cache = fr.PassageCache(folder=tmp_path)
    close(reader.with_cache(cache).score(pairs, ends=ends), want)
    assert cache.info().hits == 0 and "cannot be read" in caplog.text

    def fail(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(folders, "write_stored", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    cache = fr.PassageCache(folder=tmp_path)
    other = [([5, 6, 7, *[20] * 12, 8], [9, 11])]
    close(reader.with_cache(cache).score(other, ends=ends), reader.score(other))
    assert "cannot be written ([Errno 30]" in caplog.text


def test_a_readers_damaged_description_hides_nothing(reader, tmp_path):
    reader.with_cache(fr.PassageCache(folder=tmp_path)).score([([5, 6, 7, 8, 9], [9])], ends=[(2, 4)])
    next(tmp_path.glob("*/reader.json")).write_text("")
    (found,) = PassageFolder(tmp_path, 2**40).readers()
    assert (found.about, found.entries) == ({}, 2)


def test_nothing_is_served_to_another_reader(reader, tmp_path):
    pairs, ends = [([5, 6, 7, *[10] * 12, 8], [9, 11])], [(3, 15)]

    def asked(one, **options):
        cache = fr.PassageCache(folder=tmp_path, **options)
        close(one.with_cache(cache).score(pairs, ends=ends), one.score(pairs), 1e-5 if not options else 0.1)
        return cache.info().hits, cache.info().written

    assert asked(reader) == (0, 2)
    other = fr.Reader.load((tiny_llama(seed=1), byte_tokenizer()), device="cpu", precision="exact")
    assert asked(other) == (0, 2)
    assert asked(fr.Reader.load((tiny_llama(), byte_tokenizer()), device="cpu", precision="high")) == (0, 2)
    assert asked(reader, stored="int8") == (0, 2)
    assert asked(reader) == (1, 0)
    with torch.no_grad():
        next(other.model.parameters()).add_(0.5)
    cache = fr.PassageCache(folder=tmp_path)
    try:
        other.with_cache(cache).score(pairs, ends=ends)
    except fr.FastreaderError as error:  # of a given model, which was packed before
        assert "changed" in str(error)
    assert (cache.info().hits, cache.info().written) == (0, 0)


def test_the_least_recently_used_file_leaves_first(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_TOUCH_AFTER", 0.0)
    token = reader.local_model.model.key_value_bytes

    def cache():
        return fr.PassageCache(1, tmp_path, max_folder_bytes=80 * token)

    def asked(*which):
        one = cache()
        pairs = [([5, 6, 7, *[10 + i] * 20, 8], [9]) for i in which]
        reader.with_cache(one).score(pairs, ends=[(3, 23)] * len(which))
        time.sleep(0.02)  # the clock of a file system has steps of milliseconds
        return one.info().hits, one.info().misses

    assert asked(0) == (0, 1)
    assert asked(1) == (0, 1)
    assert asked(2) == (0, 1)
    assert asked(0) == (1, 0)
    assert asked(3) == (0, 1)  # 1 leaves
    assert asked(0, 3) == (2, 0)
    assert asked(1) == (0, 1)
    assert sum(file.stat().st_size for file in files_of(tmp_path)) < 80 * token + 4 * 4096


def test_an_entry_in_memory_keeps_its_file(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_TOUCH_AFTER", 0.0)
    cache = fr.PassageCache(folder=tmp_path)
    cached = reader.with_cache(cache)
    cached.score([([5, 6, 7, *[10] * 20, 8], [9])], ends=[(3, 23)])
    for file in files_of(tmp_path):
        os.utime(file, (1, 1))
    cached.score([([5, 6, 7, *[10] * 20, 8], [9])], ends=[(3, 23)])
    assert cache.info().loaded == 0
    assert all(file.stat().st_mtime > 1 for file in files_of(tmp_path))


def test_a_folder_that_cannot_be_written_loses_no_number(reader, tmp_path, monkeypatch, caplog):
    def fail(path, *_):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders, "write_stored", fail)
    cache = fr.PassageCache(folder=tmp_path)
    ask(reader, cache, Shelf(4), 3)
    assert caplog.text.count("No space left on device") == 1
    assert (cache.info().written, files_of(tmp_path)) == (0, [])
    assert not list(tmp_path.glob("*/.*"))


def test_a_folder_that_is_removed_under_a_reader_loses_no_number(reader, tmp_path, caplog):
    cache = fr.PassageCache(1, tmp_path / "kept")
    ask(reader, cache, Shelf(4), 1)
    shutil.rmtree(tmp_path / "kept")
    ask(reader, cache, Shelf(5), 2)
    assert caplog.text.count("cannot be written") == 1 and not (tmp_path / "kept").exists()


def test_a_file_that_cannot_be_mapped_is_read_as_a_passage(reader, tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    ask(reader, fr.PassageCache(folder=tmp_path), Shelf(4), 1)
    monkeypatch.setattr(folders, "read_stored", fail)
    before = files_of(tmp_path)
    ask(reader, fr.PassageCache(folder=tmp_path), Shelf(4), 1)
    assert before and files_of(tmp_path) == before


def test_rounded_to_8_bits(reader, tmp_path):
    """Hits differ a little, by the same numbers from memory and from files, and take less room."""
    token = reader.local_model.model.key_value_bytes
    pairs = [([5, 6, 7, *[10 + i] * 40, 8], [9, 11]) for i in range(3)]
    ends, want = [(3, 43)] * 3, reader.score(pairs)
    cache = fr.PassageCache(folder=tmp_path, stored="int8")
    close(reader.with_cache(cache).score(pairs, ends=ends), want, 0.0)  # computed
    one = reader.with_cache(cache).score(pairs, ends=ends)
    other = reader.with_cache(fr.PassageCache(folder=tmp_path, stored="int8")).score(pairs, ends=ends)
    assert [a.tolist() for a in one.token_logprobs] == [a.tolist() for a in other.token_logprobs]
    error = max(np.abs(a - b).max() for a, b in zip(one.token_logprobs, want.token_logprobs, strict=True))
    assert 0 < error < 0.05  # nats, of a random model
    assert one.stats.cached_tokens == 3 + 3 * 40
    assert cache.info().nbytes < 0.36 * 123 * token  # of float32, with a scale for 16 values


def test_rounding():
    exact = KeyValues(keys=[torch.randn(7, 2, 16, dtype=torch.bfloat16)], values=[torch.randn(7, 2, 8) * 1e-30])
    exact.values[0][3, 1] = 0.0
    rounded = RoundedKeyValues.of(exact)
    for got, want in zip(rounded.take(0, slice(1, 6)), exact.take(0, slice(1, 6)), strict=True):
        step = want.abs().amax(-1, keepdim=True).double() / 127
        assert ((got.double() - want.double()).abs() <= 0.5001 * step + want.abs() * torch.finfo(want.dtype).eps).all()
    assert torch.equal(rounded.take(0, Indices(np.array([3])))[1][0, 1], torch.zeros(8))


def test_a_reader_with_a_folder_pickles(tmp_path, model):
    reader = fr.Reader.load(model, device="cpu")
    pairs, ends = [([5, 6, 7, *[10] * 12, 8], [9, 11])], [(3, 15)]
    want = reader.with_cache(fr.PassageCache(1 << 20, tmp_path, stored="int8")).score(pairs, ends=ends)
    again = pickle.loads(pickle.dumps(reader.with_cache(fr.PassageCache(1 << 20, tmp_path, stored="int8"))))
    assert (again.passage_cache.max_bytes, again.passage_cache.entries.rounded) == (1 << 20, True)
    assert again.score(pairs, ends=ends).stats.cached_tokens == 15
    assert want.stats.cached_tokens == 0
    with pytest.raises(NotReloadableError, match=r"cache: expected a PassageCache\(folder=...\)"):
        pickle.dumps(reader.with_cache(fr.PassageCache()))


def test_bad_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"folder: expected a folder, .*file is a file"):
        fr.PassageCache(folder=tmp_path / "file")
    with pytest.raises(
        InputError, match=r"folder: .*: expected an empty folder, or one with passages\.json, got 'file'"
    ):
        fr.PassageCache(folder=tmp_path)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/passages.json").write_text('{"format": "9"}')
    with pytest.raises(InputError, match=r"folder: expected .* with format 2; remove it or name another.*got '9'"):
        fr.PassageCache(folder=tmp_path / "new")
    with pytest.raises(InputError, match="max_folder_bytes: expected an integer of at least 1"):
        fr.PassageCache(folder=tmp_path / "other", max_folder_bytes=0)
    with pytest.raises(InputError, match="stored: expected one of exact, int8, got 'int4'"):
        fr.PassageCache(stored="int4")
    assert (tmp_path / "file").read_text() == "x"


def test_prune_and_what_is_held(reader, tmp_path):
    other = fr.Reader.load((tiny_llama(seed=1), byte_tokenizer()), device="cpu")
    for i, one in enumerate((reader, other)):
        pairs = [([5, 6, 7, *[10 + j] * 12, 8], [9]) for j in range(i + 1)]
        one.with_cache(fr.PassageCache(folder=tmp_path)).score(pairs, ends=[(3, 15)] * len(pairs))
    folder = PassageFolder(tmp_path, 1 << 40)
    held = folder.readers()
    assert [each.entries for each in held] == [3, 2]
    assert held[1].about == {
        "name": reader.name, "device": "cpu", "precision": "exact", "products": "float32", "stored": "exact",
    }  # fmt: skip
    assert sum(each.nbytes for each in held) == sum(file.stat().st_size for file in files_of(tmp_path))
    assert folder.prune(unused_for=3600) == 0
    old = tmp_path / held[0].fingerprint
    for file in old.glob("*.safetensors"):
        os.utime(file, (1, 1))
    assert folder.prune(unused_for=3600) == 3
    assert [each.entries for each in folder.readers()] == [2]
    assert not old.exists()
    assert folder.prune(keep="somebody else's") == 2
    assert folder.readers() == []
    other.with_cache(fr.PassageCache(folder=tmp_path)).score([([5, 6, 7, 8], [9])], ends=[(3,)])
    assert folder.prune(max_bytes=0) == 1


def test_a_reader_pruned_while_it_writes_writes_again(reader, tmp_path):
    cache = fr.PassageCache(1, tmp_path)
    cached = reader.with_cache(cache)
    for turn in range(3):
        cached.score([([5, 6, 7, *[10 + turn] * 12, 8], [9])], ends=[(3, 15)])
        PassageFolder(tmp_path, 1 << 40).prune(max_bytes=0)
    cached.score([([5, 6, 7, *[20] * 12, 8], [9])], ends=[(3, 15)])
    assert len(files_of(tmp_path)) > 0


def test_cache_passages(reader, tmp_path):
    """They are known to `rerank` then, and a second run reads none."""
    texts = [f"The river {i} is in the town {i}." for i in range(9)]
    cache = fr.PassageCache(folder=tmp_path)
    assert fr.cache_passages(reader, iter([*texts, "", "long " * 900]), cache, max_batch_tokens=60) == 2
    assert (cache.info().misses, cache.info().hits) == (9, 0)
    cache = fr.PassageCache(folder=tmp_path)
    assert fr.cache_passages(reader, texts, cache) == 0
    assert (cache.info().misses, cache.info().hits) == (0, 9)
    ranked = fr.rerank(reader, "Which town?", texts, cache=fr.PassageCache(folder=tmp_path))
    want = fr.rerank(reader, "Which town?", texts)
    assert [r.index for r in ranked] == [r.index for r in want]
    assert ranked.stats.computed_tokens < 0.5 * want.stats.computed_tokens
    with pytest.raises(InputError, match="template: expected one with the question after the passages"):
        fr.cache_passages(reader, texts, cache, template=fr.Template(question_first=True))


def test_a_fork_uses_the_folder(reader, tmp_path):
    cache = fr.PassageCache(folder=tmp_path)
    ask(reader, cache, Shelf(6), 2)
    child = os.fork()
    if child == 0:
        try:
            ask(reader, cache, Shelf(6), 3)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


WRITER = """
import sys
from pathlib import Path
import numpy as np
from reader.test_passage_folder import exact, mixed
mixed(exact(sys.argv[2]), Path(sys.argv[1]), int(sys.argv[3]), 10**9)
"""


def mixed(reader, folder, seed, calls):
    """Score by caches of all sizes that are opened again and again, and damage a file now and then."""
    model, shelf = reader.local_model.model, Shelf(3)
    shelf.rng = rng = np.random.default_rng(seed)  # processes with the same shelf ask in another order
    token = 10 * model.key_value_bytes + 2 * model.state_bytes
    open_one = partial(fr.PassageCache, folder=folder, max_folder_bytes=30 * token)
    cache = open_one(max_bytes=1)
    found = 0
    for _ in range(calls):
        if rng.integers(6) == 0:
            found += cache.info().loaded
            cache = open_one(max_bytes=max(1, int(token * rng.choice([0, 2.5, 20]))))
        if rng.integers(20) == 0 and (files := files_of(folder)):
            file = files[rng.integers(len(files))]
            try:
                content = bytearray(file.read_bytes())
                content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
                draft = file.with_name(f".{rng.integers(1 << 60)}.tmp")  # in place would change what is mapped
                draft.write_bytes(content[: rng.integers(1, len(content) + 1)] if rng.integers(2) else content)
                draft.replace(file)
            except FileNotFoundError:
                pass
        pairs, ends = shelf.call()
        close(reader.with_cache(cache).score(pairs, ends=ends), reader.score(pairs))
    return found + cache.info().loaded


def run_mixtures(family, folder, calls, kills, seed=0):
    reader = exact(family)
    rng = np.random.default_rng(seed)
    path = os.pathsep.join([*sys.path])

    def start(n):
        return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), family, str(n)],
                                env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True)  # fmt: skip

    found = 0
    for turn in range(kills):
        other = start(1000 * seed + turn)
        begun = time.monotonic()
        while time.monotonic() - begun < 60 and not files_of(folder):
            found += mixed(reader, folder, turn, 2)
        found += mixed(reader, folder, 500 + turn, calls // kills)
        time.sleep(rng.uniform(0, 0.5))
        assert other.poll() is None, other.stderr.read()
        other.send_signal(signal.SIGKILL)
        other.communicate()
    return found


@pytest.mark.parametrize("family", ["Llama"])
def test_two_processes_kills_restarts_and_damage(family, tmp_path):
    """A process is killed while it writes. `test_many_mixtures_of_processes` does so longer."""
    assert run_mixtures(family, tmp_path / "kept", 30, 1) > 0


@pytest.mark.fuzz
@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "jamba"])
def test_many_mixtures_of_processes(family, tmp_path):
    calls, kills = (4000, 25) if LONG_FORMS else (60, 2)
    assert run_mixtures(family, tmp_path / "kept", calls, kills) > calls / 20
