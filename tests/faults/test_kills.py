"""SIGKILL, SIGTERM and Ctrl-C at random moments: after resuming, every result is there once, as without the kill."""

from __future__ import annotations

import random
import signal
import time

import pytest
from fault_runs import NAMES, start

KILLS = 40  # of each command by `make faults`: 200 in all
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def killed_until_done(run, wanted, output, chance, kills, signals):
    """Kill and resume until the run ends by itself. Return the number of kills. Whole lines are never lost."""
    before, done = [], 0
    longest = 0.3
    while True:
        resume = ("--resume",) if run.file(output).exists() or output.is_dir() else ()
        process = start(run, output, *resume)
        number = chance.choice(signals) if done < kills else 0
        moment = time.monotonic() + chance.uniform(0, longest)
        while number and time.monotonic() < moment and not process.ended():
            time.sleep(0.002)
        if number and not process.ended():
            process.kill(number)
        code = process.wait()
        longest *= 1.1  # on a busy machine, too, a run comes further each time
        lines = run.file(output).read_bytes().splitlines(keepends=True) if run.file(output).exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        assert whole[: len(before)] == before, "a whole line was lost"
        before = whole
        if code == 0:
            break
        assert code in (-number, 128 + number), process.stderr
        if code > 0:
            last = process.stderr.splitlines()[-1]  # a summary precedes it if the run had just ended
            assert last.startswith(f"stopped by {signal.Signals(number).name}; "), process.stderr
        done += 1
    assert run.results(output) == wanted
    return done


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long(keep=1)
def test_killed_twice_and_resumed(every, name, tmp_path):
    killed_until_done(*every[name], tmp_path / "out", random.Random(name), 2, SIGNALS)


@pytest.mark.faults
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_many_moments(every, name, tmp_path):
    chance, kills, turns = random.Random(f"many {name}"), 0, 0
    while kills < KILLS:
        turns += 1
        most = min(8, KILLS - kills)
        kills += killed_until_done(*every[name], tmp_path / f"out{turns}", chance, most, (signal.SIGKILL,))
        assert turns <= 5 * KILLS, f"only {kills} kills in {turns} runs"
    print(f"{name}: {kills} kills in {turns} runs")
