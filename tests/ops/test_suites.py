"""The tests of Triton kernels in Triton's interpreter, which a separate process turns on."""

from __future__ import annotations

import pytest
from suites import run


@pytest.mark.interpreter
def test_interpreter_suite() -> None:
    run("interpreter", "interpreter and not slow", TRITON_INTERPRET="1")
