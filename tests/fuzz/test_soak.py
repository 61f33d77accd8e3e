"""Ten minutes of mixed calls: resident memory is flat after the first minute."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fuzzing import LONG
from helpers.support import byte_tokenizer, random_sequences, tiny_llama

from fastreader import Example, Passage, Reader, score_permutations

SECONDS, WARM, ALLOWED = 600, 60, 5.0  # of calls, of them before memory counts, MB
QUICK_CALLS = 40
WORDS = ["sky", "blue", "grass", "green", "rose", "red", "sea", "deep", "snow", "white"]


def resident() -> float:
    """Return this process' resident memory, MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def one_round(reader, rng: np.random.Generator) -> None:
    """Score orderings, requests and a session's requests, and generate, all of new texts."""
    passages = [Passage(" ".join(rng.choice(WORDS, 8))) for _ in range(3)]
    example = Example(" ".join(rng.choice(WORDS, 4)), passages, candidates=["blue", "deep red"])
    score_permutations(reader, example, permutations=[[0, 1, 2], [2, 0, 1]])
    sequences = random_sequences(rng, 261, count=5)
    prompts = [context for context, _ in sequences]
    reader.score(sequences, max_batch_tokens=int(rng.integers(1, 200)))
    with reader.session(prompts[0], cache_scored=bool(rng.integers(2)), max_bytes=10**8) as kept:
        kept.loglikelihood(sequences)
        kept.generate(prompts, max_new_tokens=4)
    reader.generate(prompts, n=2, max_new_tokens=6, temperature=1.0, seed=int(rng.integers(1000)))


def test_mixed_calls(tiny_reader):
    """The rounds themselves, in every run."""
    rng = np.random.default_rng(0)
    for _ in range(QUICK_CALLS // 10):
        one_round(tiny_reader, rng)


@pytest.mark.fuzz
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.skipif(not LONG, reason="takes ten minutes: make fuzz")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc")
def test_memory_is_flat(record_property):
    """In a separate process: what other tests left behind would be given back and taken again."""
    here = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    code = "from test_soak import soak; soak()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": here}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rounds, first, highest, last = json.loads(done.stdout.splitlines()[-1])
    print(f"{rounds} rounds; {first:.1f} MB after {WARM} s, {highest:.1f} at most, {last:.1f} at the end")
    record_property("resident MB", [first, highest, last])
    assert highest - first <= ALLOWED, f"resident memory grew by {highest - first:.1f} MB"


def soak() -> None:
    """Print the number of rounds, and MB: the first after the warm-up, the highest and the last."""
    reader = Reader.load((tiny_llama(), byte_tokenizer(chat=True)), device="cpu", precision="exact")
    rng, started, rounds, sampled = np.random.default_rng(0), time.monotonic(), 0, []
    while (elapsed := time.monotonic() - started) < SECONDS:
        one_round(reader, rng)
        rounds += 1
        if elapsed >= WARM and (not sampled or elapsed - sampled[-1][0] >= 10):
            gc.collect()
            sampled.append((elapsed, resident()))
    sizes = [size for _, size in sampled]
    print(json.dumps([rounds, sizes[0], max(sizes), sizes[-1]]))
