"""Start the suites that need their own process, and fail with their output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(suite: str, markers: str, **environment: str) -> None:
    pytest.importorskip("triton")
    inherited = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "PYTEST_ADDOPTS")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", markers, str(HERE)]
    done = subprocess.run(
        command,
        env=inherited | {"FASTREADER_SUITE": suite} | environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    print(done.stdout.splitlines()[-1])


@pytest.mark.interpreter
def test_interpreter_suite() -> None:
    run("interpreter", "interpreter and not slow", TRITON_INTERPRET="1")


@pytest.mark.compile
def test_compile_suite() -> None:
    run("compile", "compile and not slow")


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_full_compile_suite(request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.option.markexpr:
        pytest.skip("takes more than ten minutes; run it with -m 'compile and slow'")
    run("compile", "compile and slow")
