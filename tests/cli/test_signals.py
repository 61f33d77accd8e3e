"""Ctrl-C, SIGTERM and a lack of memory: one sentence on standard error, an exit code, and a whole file."""

import json
import os
import signal
import subprocess
import sys

import pytest
from helpers.commands import COMMAND, ids, run
from helpers.forks import Forked, after

from fastreader.cli.stopping import Stopped, stop_on_signals
from fastreader.reader.reader import Reader


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["score", "rerank", "ask"])
@pytest.mark.long(keep=2)
def test_a_signal_is_answered_by_a_sentence(model, questions, tmp_path, command, number):
    out = tmp_path / "out.jsonl"
    arguments = [command, str(questions), "-m", model, "-o", str(out)]
    done = Forked(arguments, after(3, lambda _: os.kill(os.getpid(), number)))
    assert done.wait() == 128 + number, done.stderr
    assert done.stderr == (
        f"stopped by {number.name}; {out}: holds 3 results, each on a whole line; resume to add the others "
        "(the same command with --resume)\n"
    )
    assert len(ids(out)) == 3
    run(*arguments, "--resume")
    assert sorted(ids(out), key=int) == [str(i) for i in range(12)]


def test_a_study_that_is_stopped_names_its_file(model, questions, tmp_path):
    arguments = ["study", "--data", str(questions), "--method", "base", "-m", model, "-o", str(tmp_path / "run")]
    done = Forked(arguments, after(3, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    assert done.wait() == 143
    assert f"{tmp_path / 'run' / 'results.jsonl'}: holds 3 results" in done.stderr and done.stderr.count("\n") == 1
    run(*arguments, "--resume")
    assert len(ids(tmp_path / "run" / "results.jsonl")) == 12


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        mine = signal.getsignal(signal.SIGINT)
        with stop_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGINT) is not mine
        assert signal.getsignal(signal.SIGINT) is mine
        with pytest.raises(Stopped) as raised, stop_on_signals():
            os.kill(os.getpid(), signal.SIGINT)
        assert raised.value.code == 130 and signal.getsignal(signal.SIGINT) is mine
        assert "every line that is in an output file is whole" in raised.value.sentence()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.5 GiB for an array"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes."),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_named(monkeypatch, error):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(Reader, "load", load)
    said = run("score", "-q", "What?", "-p", "a", "-c", "b", expect=1).stderr
    assert said.startswith("error: not enough memory; ") and said.count("\n") == 1
    assert type(error).__name__ in said


def test_other_errors_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(Reader, "load", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("score", "-q", "What?", "-p", "a", "-c", "b")


ENDED_BY_CPP = ("terminate called", "cannot allocate memory for thread-local data")


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
@pytest.mark.parametrize("megabytes", [300, 605, 640])
@pytest.mark.long(keep=1)
def test_a_limit_on_memory_is_an_error_of_ours(questions, megabytes):
    """They stop the mapping of torch's libraries, and its import. C++ or the linker may end the process itself."""
    limited = ["bash", "-c", f'ulimit -v {megabytes * 1000}; ulimit -c 0; exec "$@"', "bash", *COMMAND]
    done = subprocess.run([*limited, "score", str(questions)], capture_output=True, text=True)
    if megabytes > 300 and done.stderr.startswith(ENDED_BY_CPP):
        return
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: not enough memory") and done.stderr.count("\n") == 1


@pytest.mark.long
def test_an_output_deleted_during_a_run_fails_and_loses_nothing(model, questions, tmp_path):
    out = tmp_path / "out.jsonl"
    arguments = ["score", str(questions), "-m", model, "-o", str(out)]
    done = Forked(arguments, after(3, lambda path: path.unlink()))
    assert done.wait() == 2
    assert done.stderr.startswith(f"error: {out}: was deleted or replaced during the run") and not out.exists()
    (rescued,) = tmp_path.glob("*.rescued-*")
    assert [json.loads(line)["id"] for line in rescued.read_text().splitlines()] == ["0", "1", "2", "3"]
    rescued.rename(out)
    run(*arguments, "--resume")
    assert ids(out) == [str(i) for i in range(12)]
