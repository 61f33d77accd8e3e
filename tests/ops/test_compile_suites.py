"""Compiling Triton kernels ahead of time, in a separate process."""

from __future__ import annotations

import pytest
from suites import run


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
