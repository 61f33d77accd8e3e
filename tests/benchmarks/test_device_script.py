"""The call that checks a device, device.sh, without one: other programs in its place, some of which fail or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
# Notes each call; a script of this project runs if it only reads files. $FAILING fails, $HANGING hangs.
PYTHON = """#!/bin/bash
echo "$*" >> "$CALLS"
case "$*" in *device_summary.py*|*rows_plugin.py*) exec {python} "$@" ;; esac
[ -n "$HANGING" ] && [[ "$*" == *"$HANGING"* ]] && exec sleep 60
[ -n "$FAILING" ] && [[ "$*" == *"$FAILING"* ]] && exit 3
echo '{{"test": "t", "outcome": "passed", "seconds": 0.1}}' >> "$OUT/tests.jsonl"
"""
OTHER = """#!/bin/bash
[ -n "$FAILING" ] && [[ "$0" == *"$FAILING"* ]] && exit 9
echo "$0"
"""


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Return a function that runs the script and returns its exit status, what it said, and the calls it made."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("nvidia-smi", "compute-sanitizer", "ncu"):
        (programs / name).write_text(OTHER)
    (programs / "python").write_text(PYTHON.format(python=sys.executable))
    for program in programs.iterdir():
        program.chmod(0o755)
    out = tmp_path / "out"

    def call(*stages: str, **environment: str) -> tuple[int, str, list[str]]:
        (tmp_path / "calls").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", str(GPU / "device.sh"), *stages],
            env={
                **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHON": str(programs / "python"),
                "OUT": str(out), "CALLS": str(tmp_path / "calls"), "FAILING": "", "HANGING": "", **environment,
            },
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        if out.exists() and done.returncode != 2:
            assert (out / "log.txt").read_text().splitlines()[-3:] == said.splitlines()[-3:]
        file = tmp_path / "calls"
        return done.returncode, said, file.read_text().splitlines() if file.exists() else []

    return call


def scripts(calls: list[str]) -> list[str]:
    """Return the first script or module of each call."""
    return [
        Path(next(word for word in call.split() if word.endswith(".py") or word == "pytest")).name for call in calls
    ]


def test_every_stage_runs_and_the_summary_comes_last(called):
    code, said, calls = called()
    assert code == 0, said
    assert sorted(scripts(calls)) == sorted([
        "smoke.py", "pytest", "pytest", "rows_plugin.py", "device_passes.py", "device_kernels.py",
        "device_kernels.py", "device_kernels.py", "device_summary.py",
    ])  # fmt: skip
    assert "memcheck: exit 0" in said and "ncu of linear_logprob: exit 0" in said
    for call in calls:
        if "--seconds" in call:
            assert 0 < int(call.split()[-1]) <= 150


@pytest.mark.parametrize("failing", ["smoke.py", "not logprob", "device_kernels.py", "compute-sanitizer"])
def test_a_stage_that_fails_ends_nothing_else(called, failing):
    code, said, calls = called(FAILING=failing)
    assert code == 1, said
    assert scripts(calls)[-1] == "device_summary.py" and "device_passes.py" in scripts(calls)


def test_a_stage_that_hangs_is_ended_and_the_next_one_runs(called):
    began = time.monotonic()
    code, said, calls = called("tests", "sanitize", HANGING="not logprob", TESTS="2")
    assert code == 1 and time.monotonic() - began < 30
    assert "memcheck: exit 0" in said and scripts(calls)[-1] == "device_summary.py"


def test_a_stage_ends_by_itself_within_what_is_left(called):
    code, said, calls = called("passes", "kernels", TOTAL="60")
    (passes, kernels, _) = calls
    assert code == 0 and int(passes.split()[-1]) <= 40 and int(kernels.split()[-1]) <= 40
    code, said, _ = called("passes", TOTAL="20")
    assert code == 1 and "no time for passes" in said


def test_mistakes_are_named_before_any_time_is_spent(called):
    code, said, calls = called("smoke", "test")
    assert (code, calls) == (2, []) and "no stage test; there are: smoke tests" in said
    code, said, calls = called("reader", "smoke", READER="")
    assert code == 1 and "READER names no folder" in said and scripts(calls) == ["smoke.py", "device_summary.py"]


def test_rows_of_an_earlier_call_are_not_mixed_in(called, tmp_path):
    for _ in range(2):
        called("smoke")
    assert len((tmp_path / "out" / "tests.jsonl").read_text().splitlines()) == 1


def test_a_row_whose_writer_was_killed_in_it_loses_no_other(tmp_path):
    rows = [{"suite": "failed", "case": "one", "why": "it broke"}, {"suite": "passes", "case": "two", "way": "w"}]
    rows[1]["milliseconds"] = 2.0
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"suite": "pas')
    (tmp_path / "tests.jsonl").write_text('{"test": "a::b", "outcome": "failed", "why": "E x"}\n{"te')
    done = subprocess.run(
        [sys.executable, str(GPU / "device_summary.py"), str(tmp_path)], capture_output=True, text=True, check=True
    )
    for part in ("FAILED a::b | E x", "FAILED one : it broke", "2.000 ms", "rows.jsonl, line 3: not whole, left out"):
        assert part in done.stdout


def test_a_kernel_that_hangs_is_one_failure(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(GPU)
    import smoke

    (tmp_path / "calls.py").write_text("import sys, time\ntime.sleep(60 * (sys.argv[1] == 'slow'))\nprint('done')\n")
    monkeypatch.setattr(smoke, "CALLS", tmp_path / "calls.py")
    monkeypatch.setattr(smoke, "TIMEOUT", 2)
    assert smoke.run("slow")[::3] == ("slow", "hangs, ended after 2 s") and smoke.run("slow")[1] == smoke.HUNG
    assert smoke.run("quick")[::3] == ("quick", "done\n")
