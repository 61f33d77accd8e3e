"""Requests at the same time share passes, have the numbers of the direct call, and do not harm each other."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.serve_support import serving

import fastreader as fr
from fastreader.errors import NumericsError
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.pass_queue import DeadlineError, Packer
from fastreader.integrations.serve.settings import ServerSettings

PASSAGES = [f"Passage {i} is about the river number {i} and has some more words in it, {i} in all." for i in range(8)]
QUESTIONS = [f"Which is river {i}?" for i in range(10)]


@pytest.fixture
def held(tiny_reader, monkeypatch):
    """A packer whose passes wait until `go` is set, and the event that one has begun."""
    packer = Packer(tiny_reader, ServerSettings(pack_seconds=0))
    go, begun, score = threading.Event(), threading.Event(), tiny_reader.score

    def waits(*arguments, **options):
        begun.set()
        assert go.wait(30)
        return score(*arguments, **options)

    monkeypatch.setattr(tiny_reader, "score", waits)
    yield packer, go, begun
    go.set()
    packer.close()


def later(seconds=30):
    return time.monotonic() + seconds


def waiting(packer, count):
    """Wait until that many calls wait behind the one that runs."""
    end = time.monotonic() + 20
    while len(packer._waiting) < count:
        assert time.monotonic() < end
        time.sleep(0.002)


def test_ten_questions_over_the_same_passages_compute_a_fifth(tiny_reader):
    with serving(tiny_reader, pack_seconds=1.0) as client, ThreadPoolExecutor(10) as pool:
        bodies = [{"text_1": question, "text_2": PASSAGES} for question in QUESTIONS]
        answers = list(pool.map(lambda body: client.post("/score", json=body).json(), bodies))
        told = client.get("/metrics").text
    computed, alone = (
        float(next(line.split()[1] for line in told.splitlines() if line.startswith(f"fastreader_{name}_tokens_total")))
        for name in ("computed", "alone")
    )
    assert computed <= 0.2 * alone
    for question, answer in zip(QUESTIONS, answers, strict=True):
        direct = {result.index: result.relevance for result in fr.rerank(tiny_reader, question, PASSAGES)}
        assert [row["score"] for row in answer["data"]] == pytest.approx([direct[i] for i in range(8)], abs=1e-5)
        assert answer["usage"]["computed_tokens"] == fr.rerank(tiny_reader, question, PASSAGES).stats.computed_tokens


def test_a_pass_holds_what_waits(held, tiny_reader):
    packer, go, begun = held
    reader = PackedReader(packer, later())
    pairs = [[([5, 6, i], [7, 8]), ([5, 9], [])] for i in range(10, 15)]
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(reader.score, [([20], [21])])
        assert begun.wait(20)
        others = [pool.submit(reader.score, own, top_tokens=2 * (i == 2)) for i, own in enumerate(pairs)]
        waiting(packer, 5)
        go.set()
        first.result()
        found = [other.result() for other in others]
    assert packer.totals.passes == 2
    for i, (own, scores) in enumerate(zip(pairs, found, strict=True)):
        direct = tiny_reader.score(own, top_tokens=2)
        np.testing.assert_allclose(scores.logprob, direct.logprob, atol=1e-5)
        assert scores.num_tokens.tolist() == [2, 0] and scores.stats == direct.stats
        if i == 2:
            assert [top.tolist() for top in scores.top_tokens] == [top.tolist() for top in direct.top_tokens]


def test_calls_that_share_a_beginning_go_first(held):
    packer, go, begun = held
    packer._most = 8
    reader = PackedReader(packer, later())
    passes = []
    original = packer.reader.score
    packer.reader.score = lambda pairs, **options: passes.append([p[0][0] for p in pairs]) or original(pairs, **options)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(reader.score, [([90], [91])])
        assert begun.wait(20)
        futures = []
        for start in (30, 40, 30):
            futures.append(pool.submit(reader.score, [([start, 5, 6, 7, 8], [9])]))
            waiting(packer, len(futures))
        go.set()
        for future in [first, *futures]:
            future.result()
    assert passes == [[90], [30, 30], [40]]


@pytest.mark.parametrize("kind", ["scores", "texts"])
@pytest.mark.parametrize("pause", [0.0, 0.6])
def test_a_small_call_goes_before_a_large_one_unless_that_is_due(held, monkeypatch, kind, pause):
    """A call is due when it would be done by itself, so that a large one waits for its own time and no longer."""
    packer, go, begun = held
    packer._most, packer._rate = 40, 100.0  # tokens a second: the large call takes half a second
    order, score, steps = [], packer.reader.score, packer.reader.generate_steps
    monkeypatch.setattr(packer.reader, "score", lambda pairs, **o: order.append(pairs[0][0][0]) or score(pairs, **o))
    monkeypatch.setattr(packer.reader, "generate_steps", lambda texts, o: order.append(texts[0][0]) or steps(texts, o))
    reader = PackedReader(packer, later())
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(reader.score, [([20], [21])])]
        assert begun.wait(20)
        if kind == "scores":
            futures.append(pool.submit(reader.score, [([30, *range(5, 54)], [9])]))
        else:
            futures.append(pool.submit(reader.generate, [[30, 31]], max_new_tokens=3))
        waiting(packer, 1)
        time.sleep(pause)
        futures.append(pool.submit(reader.score, [([40, 5, 6], [9])]))
        waiting(packer, 2)
        go.set()
        for future in futures:
            future.result()
    assert order == ([20, 30, 40] if pause else [20, 40, 30])


def test_a_call_that_fails_harms_no_other(held, tiny_reader):
    packer, go, begun = held
    score = packer.reader.score

    def fails(pairs, **options):
        if any(continuation == [99] for _, continuation in pairs):
            raise NumericsError("sequence 0: not finite")
        return score(pairs, **options)

    packer.reader.score = fails
    reader = PackedReader(packer, later())
    good, bad = [([5, 6], [7])], [([5, 6], [99])]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(reader.score, good)
        assert begun.wait(20)
        others = [pool.submit(reader.score, pairs) for pairs in (good, bad, good)]
        waiting(packer, 3)
        go.set()
        found = [first, others[0], others[2]]
        assert len({float(one.result().logprob[0]) for one in found}) == 1
        with pytest.raises(NumericsError, match="sequence 0"):
            others[1].result()


def test_greedy_texts_with_equal_options_are_written_together(held, tiny_reader, monkeypatch):
    packer, go, begun = held
    calls, steps = [], tiny_reader.generate_steps
    monkeypatch.setattr(
        tiny_reader, "generate_steps", lambda prompts, options: calls.append(len(prompts)) or steps(prompts, options)
    )
    reader = PackedReader(packer, later())
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(reader.score, [([5], [6])])
        assert begun.wait(20)
        greedy = [pool.submit(reader.generate, [f"The {i}"], max_new_tokens=4) for i in range(3)]
        drawn = [pool.submit(reader.generate, ["The"], max_new_tokens=4, temperature=1.0, seed=3) for _ in range(2)]
        waiting(packer, 5)
        go.set()
        first.result()
        texts = [future.result() for future in greedy]
        assert drawn[0].result() == drawn[1].result()
    assert sorted(calls) == [1, 1, 3]
    for i, found in enumerate(texts):
        direct = tiny_reader.generate([f"The {i}"], max_new_tokens=4)
        assert found == direct and found.stats.total_tokens == direct.stats.total_tokens
    assert packer.totals.written_tokens > 0
    assert 0 < packer.totals.longest_pass < 600


def test_time_runs_out(held):
    packer, go, begun = held
    blocked, late = PackedReader(packer, later()), PackedReader(packer, later(0.05))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(blocked.score, [([5], [6])])
        assert begun.wait(20)
        with pytest.raises(DeadlineError):
            late.score([([5], [6])])
        leaving = PackedReader(packer, later())
        left = pool.submit(leaving.score, [([5], [7])])
        waiting(packer, 2)
        leaving.cancel()
        with pytest.raises(DeadlineError):
            left.result()
        go.set()
        first.result()
    with pytest.raises(DeadlineError):
        leaving.score([([5], [6])])


def test_closing_finishes_what_waits(tiny_reader):
    packer = Packer(tiny_reader, ServerSettings(pack_seconds=5))
    reader = PackedReader(packer, later())
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(reader.score, [([5], [6])])
        waiting(packer, 1)
        packer.close()
        assert future.result().num_tokens.tolist() == [1]
    with pytest.raises(fr.errors.FastreaderError, match="stopping"):
        reader.score([([5], [6])])


def test_without_packing_each_call_has_a_pass(tiny_reader):
    packer = Packer(tiny_reader, ServerSettings(pack=False))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: PackedReader(packer, later()).score([([5], [i])]), range(6, 14)))
    packer.close()
    assert packer.totals.passes == 8
