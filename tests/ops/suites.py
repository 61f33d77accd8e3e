"""Start a suite that needs its own process, and fail with its output."""

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
