"""Start a suite that needs its own process, and fail with its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import LONG_FORMS

HERE = Path(__file__).parent


def files_of(suite: str) -> list[str]:
    """Return the files that mark tests for a suite, so that its process collects no others."""
    return [str(file) for file in sorted(HERE.glob("test_*.py")) if f"mark.{suite}" in file.read_text("utf-8")]


def run(suite: str, markers: str, **environment: str) -> None:
    pytest.importorskip("triton")
    inherited = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "PYTEST_ADDOPTS")}
    markers += "" if LONG_FORMS else " and not fuzz"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", markers, *files_of(suite)]
    command += ["--long"] if LONG_FORMS else []
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
