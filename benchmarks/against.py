"""Time this checkout against another one in alternating calls, and print the ratios of the medians.

    python benchmarks/against.py OTHER/src                 W1 and a small call, 20 rounds
    python benchmarks/against.py OTHER/src --rounds 3 --calls small host
    FASTREADER_PRODUCTS=int16 python benchmarks/against.py OTHER/src --calls w1
    python benchmarks/against.py OTHER/src --rounds 5 --calls check --model FOLDER

Each checkout runs in a separate process that keeps its reader loaded; the calls alternate, so that a machine that
drifts slows both. W1 scores 10 passages in 10 cyclic orders with 4 candidates; the small call scores 5 passages with
4 candidates from texts; "host" is the small call without the model: tokenising, planning, checks and results; "check"
is the full check at load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
CALLS = ("w1", "small", "host", "check")


def worker(source: str, name: str, wanted: list[str]) -> None:
    """Load a reader with the code of `source`, then time the call named by each line of standard input."""
    sys.path.insert(0, source)
    calls = make_calls(source, name, wanted)
    print("ready", flush=True)
    for line in sys.stdin:
        call = calls[line.strip()]
        started = time.perf_counter()
        seconds = call()
        print(json.dumps(seconds if isinstance(seconds, float) else time.perf_counter() - started), flush=True)


def make_calls(source: str, name: str, wanted: list[str]) -> dict[str, Callable[[], Any]]:
    """Return the wanted calls by name, each run once."""
    import torch

    import fastreader as fr
    from fastreader.ops.linear_logprob import LogprobStats

    assert Path(fr.__file__).is_relative_to(source), fr.__file__
    if "check" in wanted:  # without a reader in memory next to the one that it loads
        assert wanted == ["check"], "time the check by itself"
        return {"check": partial(check_seconds, name)}
    reader = fr.Reader.load(name)
    questions = fr.load_examples(ROOT / "examples" / "questions.jsonl")
    pool = [passage for question in questions for passage in question.passages]
    example, four = questions[0], ["a metal", "tungsten", "rhenium", "none of them"]
    own = getattr(reader, "local_model", None) or getattr(reader, "engine", reader)
    model = getattr(own, "model", None) or own._model
    scored = model.score

    def without_model(tree: Any, *_: Any, **__: Any) -> LogprobStats:
        zeros = torch.zeros(len(tree.targets))
        return LogprobStats(zeros, zeros, zeros.long(), zeros)

    def small() -> None:
        fr.score_permutations(reader, example.question, example.passages[:5], four)

    def host() -> None:
        model.score = without_model
        try:
            small()
        finally:
            model.score = scored

    calls = {
        "w1": lambda: fr.score_permutations(reader, example.question, pool[:10], four),
        "small": small,
        "host": host,
    }
    for call in wanted:
        calls[call]()
    return calls


def check_seconds(name: str) -> float:
    """Load a reader with the full check, and return the seconds of the check."""
    from fastreader.reader import reader as module

    check, seconds = module.check, []

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        found = check(*arguments)
        seconds.append(time.perf_counter() - started)
        return found

    with mock.patch.object(module, "check", timed):
        module.Reader.load(name, check="full")
    return sum(seconds)


def main() -> None:
    """Alternate the calls and print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="The src folder of another checkout, built with its own extension.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=["w1", "small", "host"])
    parser.add_argument("--model", default="smollm2-135m", help="A name or path that both checkouts load.")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.other, arguments.model, arguments.calls)
        return
    sources = {"this": str(ROOT / "src"), "other": str(Path(arguments.other).resolve())}
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, source, "--worker", "--model", arguments.model, "--calls", *arguments.calls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, source in sources.items()
    }
    for process in workers.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n", "a worker failed"
    for call in arguments.calls:
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for round_ in range(arguments.rounds):
            for name in list(workers) if round_ % 2 else list(workers)[::-1]:
                process = workers[name]
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(call + "\n")
                process.stdin.flush()
                seconds[name].append(float(process.stdout.readline()))
        this, other = (statistics.median(seconds[name]) for name in ("this", "other"))
        ratio = f"ratio {this / other:.3f} over {arguments.rounds} rounds"
        print(f"{call:6} this {this:8.4f} s   other {other:8.4f} s   {ratio}")
    for process in workers.values():
        process.terminate()


if __name__ == "__main__":
    main()
