"""Run the suite of CUDA devices with `pytest -m gpu`. Elsewhere it is skipped with the reason."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "ops"), str(HERE.parents[1] / "benchmarks" / "gpu")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        reason = "no CUDA device"
    elif importlib.util.find_spec("triton") is None:
        reason = "the triton package is not installed"
    else:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def poisoned_memory() -> Iterator[None]:
    from forests import poisoned

    with poisoned():
        yield
