"""Keep the suites that need their own process out of every other process.

Tests marked `interpreter` or `compile` run if FASTREADER_SUITE names their marker. `test_suites.py` and
`test_compile_suites.py` start a process for each marker and are themselves skipped there, so plain `pytest` runs
everything once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from forests import poisoned

SUITES = ("interpreter", "compile")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite = os.environ.get("FASTREADER_SUITE")
    kept, dropped = [], []
    for item in items:
        marked = next((name for name in SUITES if item.get_closest_marker(name)), None)
        starts_suite = item.path.name.endswith("suites.py")
        wanted = (not starts_suite and marked == suite) if suite else (starts_suite or marked is None)
        (kept if wanted else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def poisoned_memory() -> Iterator[None]:
    with poisoned():
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Spare Triton's interpreter two thirds of its work, none of which compiled kernels do.

    It patches Triton's language in each inner call, where once a launch is enough. It checks each sum and product of
    integers for overflow, with six more operations, though no test has as many values as 32 bits count. For each
    operation it builds its table of types again.
    """
    if os.environ.get("FASTREADER_SUITE") != "interpreter":
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    launch, patch, type_of = interpreter.GridExecutor.__call__, interpreter._patch_lang, interpreter._get_np_dtype
    patched: set[int] = set()
    types: dict[str, Any] = {}

    def once(fn: Any) -> Any:
        modules = {id(m) for m in fn.__globals__.values() if m is language or m is language.core}
        if modules and modules <= patched:
            return None
        patched.update(modules)
        return patch(fn)

    def launched(grid: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()  # the end of a launch restores the language
        launch(grid, *args, **kwargs)

    def known(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in types:
            types[name] = type_of(kind.scalar)
        return types[name]

    with pytest.MonkeyPatch.context() as context:
        context.setattr(interpreter, "_patch_lang", once)
        context.setattr(interpreter, "_get_np_dtype", known)
        context.setattr(interpreter.GridExecutor, "__call__", launched)
        context.setattr(
            interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)
        )
        yield


class PretendDriver:
    """A CUDA device of compute capability 9.0, as far as Triton needs one to compile."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Record the compilations that launches request, by key. Nothing is compiled or run."""
    from triton import knobs
    from triton.runtime import driver

    requests: dict[str, Any] = {}

    def record(*, key: str, compile: dict[str, Any], **_: Any) -> bool:
        requests[str(key)] = compile
        return True  # pretend it is compiled

    monkeypatch.setattr(driver, "_active", PretendDriver())
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", record)
    return requests
