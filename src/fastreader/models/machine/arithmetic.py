"""Choose a reader's device, storage type and arithmetic.

On the CPU, linear layers multiply in the fastest way of this machine that keeps a precision's promise. CPUs differ:
with AMX bfloat16 is many times faster than float32, and some servers with AVX-512 BF16 multiply bfloat16 at half the
rate of float32. So small products are timed once and the rates kept in the cache folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from fastreader.core.checks import check_choice, expect, rejecting
from fastreader.core.lazy import cached_property
from fastreader.data.files import cache_dir, read_object, write_json
from fastreader.data.fingerprints import digest
from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.linear import PRODUCTS, BlockTensor, BlockWeight, PackedWeight, Products, linear, prepare

Precision = Literal["fast", "high", "exact"]
PRECISIONS: tuple[Precision, ...] = ("fast", "high", "exact")
_SHORT_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, long) for long, short in _SHORT_NAMES.items() for name in (long, short)
}

# What each precision may use, most exact first; "torch" is PyTorch's own float32, without a copy of the weights.
ALLOWED: dict[str, tuple[Products, ...]] = {
    "fast": ("float32", "int16", "bf16", "torch"),
    "high": ("float32", "bf16x3", "torch"),
    "exact": ("float32", "torch"),
}
VARIABLE = "FASTREADER_PRODUCTS"
_GAIN = 1.3  # of a rounded product over float32, below which float32 is worth more; and of int16 over bf16
_FEW_GAIN = 1.5  # of int16 over bf16 in one row of weights in cache; in memory they differ less
_SLOWER = 1.5  # that a way may be in many rows of weights that keep a file's integers, if it gains in few
_ROWS, _DEPTH, _WIDTH = 256, 576, 1536
_FEW = " (1 row of Q4_0)"  # ends the names of the rates at which one text is written from such weights
_REPEATS, _SECONDS = 3, 0.03  # least number of rounds, and the time after which no other begins
_FASTEST = 1e5  # GFLOP/s that no thread reaches
Rates = dict[str, float]


@dataclass(frozen=True)
class Arithmetic:
    """Device, storage type and precision of a reader.

    Attributes:
        device: of the weights; of several, the first that is not the CPU.
        dtype: storage type of the weights.
        precision: of the products: "fast", operands at worst in bfloat16; "high", at worst as sums of two bfloat16
            terms; "exact", float32 (float64 if the weights are). Accumulation and everything else is float32.
        reason: why this precision and these products were chosen, one line.
        products: how linear layers multiply, see `Products`.
        formats: of weights that keep the integers of their GGUF file, as the file names them.
        unpacked: formats of a GGUF file whose values were computed at load.
        devices: of the weights, if the model is on several.
        deterministic: whether sums have an order that does not depend on the other sequences of a pass.
    """

    device: torch.device
    dtype: torch.dtype
    precision: Precision
    reason: str
    products: Products = "torch"
    deterministic: bool = False
    formats: tuple[str, ...] = ()
    unpacked: tuple[str, ...] = ()
    devices: tuple[torch.device, ...] = ()

    @cached_property
    def where(self) -> str:
        """The devices of the weights, in words."""
        return " + ".join(map(str, self.devices or (self.device,)))

    @cached_property
    def stored(self) -> str:
        """How weights are stored, in words: their type, or the formats of their file."""
        dtype = str(self.dtype).removeprefix("torch.")
        return " + ".join((*self.formats, *(f"{name} as {dtype}" for name in self.unpacked))) or dtype


@cache
def cpu_flags() -> frozenset[str]:
    """Return this CPU's instruction sets as /proc/cpuinfo names them, or nothing without that file."""
    return frozenset(_cpuinfo("flags", "Features").split())


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device with that name, where "auto" is the current CUDA device if there is one, else the CPU.

    Raises:
        InputError: if this machine has no such device.
    """
    if device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    with rejecting(f"device: expected 'auto', 'cpu' or 'cuda[:n]', got {device!r}", RuntimeError):
        resolved = torch.device(device)
    if resolved.type == "cuda":
        seen = torch.cuda.is_available()
        expect(seen, "device", f"the CPU, since torch {torch.__version__} sees no CUDA device", device)
        count = torch.cuda.device_count()
        devices = f"one of the {count} CUDA devices, cuda:0 to cuda:{count - 1}"
        expect((resolved.index or 0) < count, "device", devices, device)
    return resolved


def resolve(
    device: str | torch.device,
    dtype: str | torch.dtype,
    precision: str,
    checkpoint: torch.dtype,
    products: str = "auto",
    integers: bool = False,
) -> Arithmetic:
    """Choose device, storage and arithmetic.

    Weights are stored as in the checkpoint unless `dtype` names another type. On a CPU, products are those that are
    fastest there and keep the precision's promise; float64 weights are always multiplied in float64.

    Args:
        device: "auto", "cpu", "cuda", ... or a torch.device.
        dtype: "auto", "bfloat16", "float16", "float32", "float64" or a torch.dtype.
        precision: "fast", "high" or "exact".
        checkpoint: type of the stored weights.
        products: "auto", or how linear layers multiply, see `choose`.
        integers: whether the weights keep the integers of their GGUF file.

    Raises:
        InputError: if a name is unknown, or this machine has no such device.
    """
    check_choice("precision", precision, PRECISIONS)
    resolved = resolve_device(device)
    asked = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    expect(asked is not None or dtype == "auto", "dtype", f"'auto', 'file' or one of {', '.join(_DTYPES)}", dtype)
    stored = asked or checkpoint
    if stored == torch.float64:
        return Arithmetic(resolved, stored, "exact", "weights are float64")
    if resolved.type != "cpu":
        own: Products = "bf16" if precision == "fast" else "bf16x3" if precision == "high" else "torch"
        expect(products in ("auto", own), "products", f"'auto' on {resolved}", products)
        return Arithmetic(resolved, stored, cast(Precision, precision), "as requested", own)
    chosen, reason = choose(precision, products, integers=integers)
    if chosen == "torch":  # float32, since PyTorch's bfloat16 products would also round what they return
        return Arithmetic(resolved, stored, "exact", reason, chosen)
    return Arithmetic(resolved, stored, cast(Precision, precision), reason, chosen)


def choose(precision: str, asked: str, rates: Rates | None = None, *, integers: bool = False) -> tuple[Products, str]:
    """Return how to multiply on the CPU, and why.

    Args:
        precision: "fast", "high" or "exact".
        asked: "auto", or one that `ALLOWED` gives for the precision. `FASTREADER_PRODUCTS` replaces "auto" for
            precisions that allow what it names.
        rates: GFLOP/s as `measure` returns them; by default of this machine, timed or from the cache folder.
        integers: whether the weights keep the integers of their GGUF file.

    Raises:
        InputError: if `asked` is not allowed for the precision, or this machine cannot do it.
    """
    named = asked
    if asked == "auto" and (variable := os.environ.get(VARIABLE)):
        check_choice(VARIABLE, variable, PRODUCTS)
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
    if precision == "high":
        rounded: Products = "bf16x3"
    elif integers:
        rounded = "int16" if _keeps_pace(found) else "bf16"
    else:
        # With int16 attention runs in float32, so that a small gain in the linear layers would be lost again.
        rounded = "int16" if found.get("int16", 0.0) >= _GAIN * found.get("bf16", 0.0) else "bf16"
    gain = found.get(rounded, 0.0) / found["float32"]
    if integers and gain * _SLOWER >= 1:  # scoring loses little of what writing wins
        gain = max(gain, found.get(rounded + _FEW, 0.0) / found["float32" + _FEW])
    return rounded if gain >= _GAIN else "float32", _said(found)


def _keeps_pace(rates: Rates) -> bool:
    """Return whether int16 is worth more than bf16 for weights that keep integers: by few rows, if many lose little."""
    if rates["int16"] >= _GAIN * rates.get("bf16", 0.0):
        return True
    few = rates["int16" + _FEW] >= _FEW_GAIN * rates.get("bf16" + _FEW, 0.0)
    return few and rates["int16"] * _SLOWER >= rates.get("bf16", 0.0)


def _why_not(products: str) -> str | None:
    """Return why this machine cannot multiply so, or None if it can."""
    if products == "torch":
        return None
    if (missing := extension.why_missing()) is not None:
        return missing
    if products.startswith("bf16") and not _has_bf16():
        return f"instruction set {extension.used_instruction_set()} has no bfloat16 products"
    return None


def _has_bf16() -> bool:
    return extension.used_instruction_set() in ("avx512_bf16", "amx", "neon_bf16")


def _said(rates: Rates) -> str:
    return "measured GFLOP/s in one thread: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())


def machine_rates() -> Rates:
    """Return the GFLOP/s of each way on this machine in one thread, from the cache if known."""
    return dict(_machine_rates(extension.used_instruction_set()))


@cache
def _machine_rates(instructions: str) -> tuple[tuple[str, float], ...]:
    name = _cpuinfo("model name") or platform.processor() or platform.machine()
    used = [name, instructions, "one thread", version("fastreader"), torch.__version__, extension.ABI]
    path = cache_dir() / "rates" / f"{digest(used, 16)}.json"
    with contextlib.suppress(InputError):  # without usable rates they are timed again
        kept = read_object(path)
        if set(kept) == {*ways(), *_few()} and all(
            isinstance(rate, float) and 0 < rate < _FASTEST for rate in kept.values()
        ):
            return tuple(kept.items())
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


def _few() -> tuple[str, ...]:
    return tuple(way + _FEW for way in ways() if way != "bf16x3")


def measure() -> Rates:
    """Return the best GFLOP/s of each way in one thread, on products of 256 x 576 by 576 x 1536, timed alternately.

    Others are of one row and a weight that keeps the integers of a file. With several threads, other work on the
    machine would delay one of them most of the time.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, _DEPTH, generator=generator)
    weight = torch.randn(_WIDTH, _DEPTH, generator=generator).bfloat16()
    cases: dict[str, tuple[Tensor, Tensor | PackedWeight]] = {way: (rows, prepare(weight, way)) for way in ways()}
    file_rows = torch.zeros(_WIDTH, _DEPTH // 32 * 18, dtype=torch.uint8)
    integers = BlockTensor(BlockWeight.pack(file_rows, "Q4_0", _DEPTH))
    cases |= {name: (rows[:1], prepare(integers, name.removesuffix(_FEW))) for name in _few()}
    best = dict.fromkeys(cases, float("inf"))
    started, rounds = time.perf_counter(), 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        while rounds < _REPEATS or time.perf_counter() - started < _SECONDS:
            for name, (inputs, packed) in cases.items():
                before = time.thread_time()  # on a busy machine the clock counts what others compute too
                linear(inputs, packed, precision=name.removesuffix(_FEW))
                best[name] = min(best[name], time.thread_time() - before)
            rounds += 1
    finally:
        torch.set_num_threads(threads)
    return {name: round(2 * len(inputs) * _DEPTH * _WIDTH / best[name] / 1e9, 1) for name, (inputs, _) in cases.items()}


def _cpuinfo(*names: str) -> str:
    """Return the first value in /proc/cpuinfo whose name starts so, or "" without one or without that file."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(names)), "")
