"""Another process: it loads a pickled reader again, gives the same bits with other threads, and may fork."""

import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama
from test_determinism import digest
from test_pickling import logprobs
from test_threads import can_fork, scored

from fastreader import Reader
from fastreader.ops import extension


@pytest.fixture(scope="module")
def another_process():
    """Return what calls a function in a process with another number of threads and another seed of hashes."""
    threads = 3 if torch.get_num_threads() == 2 else 2
    with pytest.MonkeyPatch.context() as patch:  # both are read when a process starts
        patch.setenv("OMP_NUM_THREADS", str(threads))
        patch.setenv("PYTHONHASHSEED", str(threads))
        pool = multiprocessing.get_context("spawn").Pool(1)
        with pool:
            assert pool.apply_async(torch.get_num_threads).get(120) == threads
            yield lambda function, *given: pool.apply_async(function, given).get(120)


def describe_and_score(reader):
    return reader.describe(), repr(reader), logprobs(reader)


def test_a_pickled_reader_is_loaded_there(model, another_process):
    reader = Reader.load(model, precision="exact")
    about, shown, found = another_process(describe_and_score, reader)
    assert about == {**reader.describe(), "check": "quick"} and shown == repr(reader)
    assert found == pytest.approx(logprobs(reader), abs=1e-9)


@pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
def test_bits_do_not_depend_on_its_threads(another_process):
    assert another_process(digest) == digest()


def child_after_threads():
    """Return the exit code of a child that scores after PyTorch's threads ran."""
    reader = Reader.load((tiny_llama(), byte_tokenizer()), device="cpu", precision="exact", deterministic=True)
    alone = scored(reader)
    torch.randn(512, 512) @ torch.randn(512, 512)  # PyTorch's threads exist now
    child = os.fork()
    if child == 0:
        os._exit(0 if scored(reader) == alone else 3)
    _, status = os.waitpid(child, 0)
    assert scored(reader) == alone
    return os.waitstatus_to_exitcode(status)


@can_fork
def test_a_child_of_a_parent_with_several_threads(another_process):
    """OpenMP's threads do not survive a fork, and waiting for them would hang."""
    assert another_process(child_after_threads) == 0


def load_with_cache(folder, cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREADER_CACHE", str(cache))
        return logprobs(Reader.load(folder, precision="exact"))


def test_two_processes_load_one_folder_at_once(another_process, tmp_path):
    tiny_llama().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    with ThreadPoolExecutor(1) as threads:
        there = threads.submit(another_process, load_with_cache, tmp_path / "model", tmp_path / "cache")
        here = load_with_cache(tmp_path / "model", tmp_path / "cache")
    assert there.result() == pytest.approx(here, abs=1e-9)
    for file in (tmp_path / "cache").rglob("*.*"):
        assert file.suffix == ".json" and json.loads(file.read_text(encoding="utf-8"))
    assert load_with_cache(tmp_path / "model", tmp_path / "cache") == pytest.approx(here, abs=1e-9)
