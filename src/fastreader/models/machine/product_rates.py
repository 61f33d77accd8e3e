"""Choose how linear layers multiply on the CPU: the fastest way of this machine that keeps a precision's promise.

CPUs differ: with AMX bfloat16 is many times faster than float32, and some servers with AVX-512 BF16 multiply bfloat16
at half the rate of float32. So small products are timed once and the rates kept in the cache folder.
"""

from __future__ import annotations

import json
import os
import platform
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

from fastreader.core.checks import check_choice, expect
from fastreader.data.cache_folder import cache_dir
from fastreader.data.files import write_json
from fastreader.data.fingerprints import digest
from fastreader.ops import extension

Products = Literal["bf16", "bf16x3", "float32", "int16", "torch"]

# What each precision may use, most exact first; "torch" is PyTorch's own float32, without a copy of the weights.
ALLOWED: dict[str, tuple[Products, ...]] = {
    "fast": ("float32", "int16", "bf16", "torch"),
    "high": ("float32", "bf16x3", "torch"),
    "exact": ("float32", "torch"),
}
# The precision of `ops.linear` that multiplies so.
OPERATOR: dict[str, str] = {"bf16": "fast", "bf16x3": "high", "float32": "float32", "int16": "int16", "torch": "exact"}
VARIABLE = "FASTREADER_PRODUCTS"
_GAIN = 1.3  # of a rounded product over float32, below which float32 is worth more; and of int16 over bf16
_ROWS, _DEPTH, _WIDTH = 256, 576, 1536
_REPEATS, _SECONDS = 3, 0.03  # least number of rounds, and the time after which no other begins
Rates = dict[str, float]


def choose(precision: str, asked: str, rates: Rates | None = None) -> tuple[Products, str]:
    """Return how to multiply on the CPU, and why.

    Args:
        precision: "fast", "high" or "exact".
        asked: "auto", or one that `ALLOWED` gives for the precision. `FASTREADER_PRODUCTS` replaces "auto" for
            precisions that allow what it names.
        rates: GFLOP/s of each way; by default of this machine, timed or from the cache folder.

    Raises:
        InputError: if `asked` is not allowed for the precision, or this machine cannot do it.
    """
    named = asked
    if asked == "auto" and (variable := os.environ.get(VARIABLE)):
        check_choice(VARIABLE, variable, tuple(OPERATOR))
        named = variable if variable in ALLOWED[precision] else "auto"
    if named != "auto":
        check_choice(f"products (precision {precision!r})", named, ("auto", *ALLOWED[precision]))
        why = _why_not(named)
        expect(why is None, "products", f"a way that works here; {why}", named)
        return named, "as requested" if named == asked else f"as {VARIABLE} says"  # type: ignore[return-value]
    if (missing := extension.why_missing()) is not None:
        return "torch", missing
    found = machine_rates() if rates is None else rates
    if precision == "exact":
        return "float32", _said(found)
    rounded: Products = "bf16x3"
    if precision == "fast":
        # With int16 attention runs in float32, so that a small gain in the linear layers would be lost again.
        rounded = "int16" if found.get("int16", 0.0) >= _GAIN * found.get("bf16", 0.0) else "bf16"
    return rounded if found.get(rounded, 0.0) >= _GAIN * found["float32"] else "float32", _said(found)


def _why_not(products: str) -> str | None:
    """Return why this machine cannot multiply so, or None if it can."""
    if products == "torch":
        return None
    if (missing := extension.why_missing()) is not None:
        return missing
    if products.startswith("bf16") and not _has_bf16():
        return f"instruction set {_instruction_set()} has no bfloat16 products"
    return None


def _has_bf16() -> bool:
    return _instruction_set() in ("avx512_bf16", "amx", "neon_bf16")


def _instruction_set() -> str:
    named = extension.instruction_set()
    return extension.best_instruction_set() if named == "auto" else named


def _said(rates: Rates) -> str:
    return "measured GFLOP/s in one thread: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())


def machine_rates() -> Rates:
    """Return the GFLOP/s of each way on this machine in one thread, from the cache if known."""
    return dict(_machine_rates(_instruction_set()))


@cache
def _machine_rates(instructions: str) -> tuple[tuple[str, float], ...]:
    used = [_cpu_name(), instructions, "one thread", version("fastreader"), torch.__version__, extension.ABI]
    path = cache_dir() / "rates" / f"{digest(used, 16)}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if set(kept) == set(ways()) and all(isinstance(rate, float) and rate > 0 for rate in kept.values()):
            return tuple(kept.items())
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # without usable rates they are timed again
    found = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    except OSError:
        pass  # a cache folder that cannot be written keeps none
    return tuple(found.items())


def ways() -> tuple[Products, ...]:
    """Return the ways of this machine, besides PyTorch's own."""
    return ("float32", "int16", *(("bf16", "bf16x3") if _has_bf16() else ()))


def measure() -> Rates:
    """Return the best GFLOP/s of each way in one thread, on products of 256 x 576 by 576 x 1536, timed alternately.

    With several threads, other work on the machine would delay one of them most of the time.
    """
    from fastreader.ops.linear import linear, prepare

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, _DEPTH, generator=generator)
    weight = torch.randn(_WIDTH, _DEPTH, generator=generator).bfloat16()
    packed = {way: prepare(weight, OPERATOR[way]) for way in ways()}
    best = dict.fromkeys(packed, float("inf"))
    started, rounds = time.perf_counter(), 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        while rounds < _REPEATS or time.perf_counter() - started < _SECONDS:
            for way in best:
                before = time.perf_counter()
                linear(rows, packed[way], precision=OPERATOR[way])
                best[way] = min(best[way], time.perf_counter() - before)
            rounds += 1
    finally:
        torch.set_num_threads(threads)
    return {way: round(2 * _ROWS * _DEPTH * _WIDTH / seconds / 1e9, 1) for way, seconds in best.items()}


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
