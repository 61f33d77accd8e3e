"""Running the command line in tests."""

import contextlib
import io
import os
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np

from fastreader import PermutationScores, cli
from fastreader.core.tree import TreeStats
from fastreader.data.result_log import iter_results

STATS = TreeStats(sequences=4, total_tokens=100, computed_tokens=50, scored=20)
COMMAND = [sys.executable, "-m", "fastreader.cli"]
ONE = ("-q", "What?", "-p", "This.", "-p", "That.", "-c", "one", "-c", "two")


def run(*arguments, expect=0, **environment):
    """The command line in this process, so that the heavy imports are paid once."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fastreader", *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    assert code == expect, err.getvalue()
    return SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())


@contextlib.contextmanager
def piped(content):
    """Standard input is a pipe with this in it."""
    before = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def ids(path):
    return [row["id"] for row in iter_results(path)]


def made_up(texts, orders=((0, 1), (1, 0)), worst=-100.0):
    """Scores without a model."""
    logprobs = np.linspace(worst, -1.0, len(orders) * len(texts)).reshape(len(orders), len(texts))
    return PermutationScores(
        question="What?",
        candidates=list(texts),
        permutations=np.array(orders),
        logprobs=logprobs,
        question_logprobs=np.full(len(orders), -12.5),
        candidate_tokens=np.ones(len(texts), dtype=np.int64),
        question_tokens=3,
        passages_tokens=np.full(len(orders), 9),
        greedy=np.zeros(logprobs.shape, dtype=bool),
        stats=STATS,
        seconds=0.5,
        reader={},
        design="cyclic",
        id="0",
    )
