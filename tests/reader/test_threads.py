"""One reader in many threads, in forked children and behind asyncio: the numbers of a call alone, and no hang."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.support import random_sequences

from fastreader import Reader
from fastreader.errors import FastreaderError, ModelNotFoundError
from fastreader.reader import reader as reader_module

RNG = np.random.default_rng(3)
SEQUENCES = random_sequences(RNG, 261, count=6)
PROMPTS = [context for context, _ in SEQUENCES[:3]]
can_fork = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")


def scored(reader):
    return [values.tolist() for values in reader.score(SEQUENCES).token_logprobs]


def written(reader):
    return [
        (text.token_ids, text.token_logprobs)
        for (text,) in reader.generate(PROMPTS, max_new_tokens=4, token_logprobs=True, max_batch_tokens=500)
    ]


def in_a_session(reader):
    with reader.session(PROMPTS[0], max_bytes=10**7) as kept:
        return scored(kept), written(kept)


def test_sixteen_threads_give_the_bits_of_one(tiny_reader):
    calls = [scored, written, in_a_session]
    alone = [call(tiny_reader) for call in calls]
    together = threading.Barrier(16)

    def run(i: int):
        together.wait()
        return [calls[(i + k) % 3](tiny_reader) for k in range(6)]

    with ThreadPoolExecutor(16) as pool:
        for i, got in enumerate(pool.map(run, range(16))):
            assert got == [alone[(i + k) % 3] for k in range(6)]


def test_one_session_in_sixteen_threads(tiny_reader):
    with tiny_reader.session(PROMPTS[0], max_bytes=10**7, cache_scored=True) as kept:
        alone = scored(kept)
        with ThreadPoolExecutor(16) as pool:
            futures = [pool.submit(scored if i % 2 else written, kept) for i in range(32)]
            got = [future.result() for future in futures]
    wanted = written(tiny_reader)
    for i, result in enumerate(got):
        if i % 2:
            for mine, theirs in zip(result, alone, strict=True):
                assert mine == pytest.approx(theirs, abs=1e-4)
        else:
            assert [tokens for tokens, _ in result] == [tokens for tokens, _ in wanted]


def test_a_cancelled_wait_disturbs_nobody(tiny_reader):
    """The thread behind a cancelled wait runs on to its end, and its result is dropped."""
    alone = scored(tiny_reader)
    ended = []

    def slow():
        result = scored(tiny_reader)
        ended.append(result)
        return result

    async def run():
        others = [asyncio.create_task(asyncio.to_thread(scored, tiny_reader)) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(slow), 0.05)
        assert not ended  # it waits for the lock, held below
        tiny_reader.local_model.lock.release()
        return await asyncio.gather(*others)

    tiny_reader.local_model.lock.acquire()
    assert asyncio.run(run()) == [alone] * 3  # closing the loop joins the abandoned thread
    assert ended == [alone]
    assert scored(tiny_reader) == alone


@can_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_during_a_pass(tiny_reader):
    """The child inherits the lock as some thread of the parent held it, and no thread that would release it."""
    alone, held, done = scored(tiny_reader), threading.Event(), threading.Event()

    def hold():
        with tiny_reader.local_model.lock:
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(scored(tiny_reader)))
    child.start()
    try:
        assert queue.get(timeout=60) == alone
        child.join(60)
        assert child.exitcode == 0
    finally:
        child.kill()
        done.set()
        holder.join()
    assert scored(tiny_reader) == alone


@can_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_waits_for_a_load(monkeypatch):
    """In the child PyTorch's default type is not the one that transformers sets while it loads."""
    entered, going_on = threading.Event(), threading.Event()

    def load(_options: object) -> None:
        torch.set_default_dtype(torch.bfloat16)
        entered.set()
        going_on.wait(30)
        torch.set_default_dtype(torch.float32)
        raise ModelNotFoundError("as wanted")

    monkeypatch.setattr(reader_module, "load", load)

    def attempt() -> None:
        with pytest.raises(ModelNotFoundError):
            Reader.load("smollm2-135m")

    thread = threading.Thread(target=attempt)
    thread.start()
    assert entered.wait(30)
    threading.Timer(0.3, going_on.set).start()
    child = os.fork()
    if not child:
        os._exit(0 if torch.get_default_dtype() == torch.float32 and reader_module._loading.acquire(timeout=5) else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


@can_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_session_in_use_during_a_fork_is_closed_in_the_child(tiny_reader):
    """What it keeps may be half written there. An idle session still works."""
    busy, idle = (tiny_reader.session(PROMPTS[0], max_bytes=10**7) for _ in range(2))
    alone, held, done = scored(idle), threading.Event(), threading.Event()

    def hold():
        with busy._use:
            held.set()
            done.wait(60)

    def use_both(queue):
        try:
            scored(busy)
        except FastreaderError as error:
            queue.put(str(error))
        queue.put(scored(idle))

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=use_both, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == "session: closed; its keys and values are gone"
        assert queue.get(timeout=60) == alone
    finally:
        child.kill()
        done.set()
        holder.join()
        busy.close(), idle.close()


@can_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_texts_are_encoded_encodes(tiny_reader):
    """All locks of a reader are new there, the tokenizer's too."""
    with tiny_reader.encoder._lock, tiny_reader.local_model.lock:
        child = os.fork()
        if not child:
            done: list[list[int]] = []
            encoding = threading.Thread(target=lambda: done.append(tiny_reader.encoder.piece("a b")), daemon=True)
            encoding.start()
            encoding.join(10)
            os._exit(0 if done and done[0] else 1)
        assert os.waitpid(child, 0)[1] == 0
