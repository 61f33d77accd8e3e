"""Cases of the kernels of recurrences and of the short convolution, for the compile report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from compile_case import NAMES, Case

from fastreader.ops.causal_conv import triton as conv
from fastreader.ops.recurrent import triton as scan
from fastreader.ops.recurrent import triton_chunks as chunks
from fastreader.ops.recurrent import triton_pairs as pairs

OPS = ("linear", "delta", "channels")
HALF, SINGLE = torch.bfloat16, torch.float32
TABLES = {"chain_ptr": "*i32", "before_ptr": "*fp32", "after_ptr": "*fp32", "kept_ptr": "*fp32"}
NUMBERS = {"scale": "fp32", "epsilon": "fp32"}
PAIRS = {"score_ptr": "*fp32", "system_ptr": "*fp32"}


def _case(
    name: str,
    kernel: Any,
    target: int,
    dtype: torch.dtype,
    operands: str,
    types: dict[str, str],
    constants: dict[str, Any],
    options: dict[str, int],
    matrix: bool = False,
    few_rows: bool = True,
) -> Case:
    """Return a case with `operands` of the type, and constants among the options of a launch."""
    types = {f"{operand}_ptr": f"*{NAMES[dtype]}" for operand in operands.split()} | types
    constants = constants | {name: value for name, value in options.items() if name.isupper()}
    options = {name: value for name, value in options.items() if not name.isupper()}
    return Case(name, kernel, target, dtype, matrix, few_rows, types, constants, options, split=matrix)


def pairs_case(target: int, op: str, size: int, dtype: torch.dtype, normed: bool = False) -> Case:
    """Return the case of the products within chunks."""
    types = {"gate_ptr": "*fp32", "beta_ptr": "*fp32", "chunk_ptr": "*i32"} | PAIRS | NUMBERS
    channels = op == "channels"
    constants: dict[str, Any] = {"GROUPS": 2, "NORMED": normed, "D": size, "CHANNELS": channels}
    if not channels:
        constants["stride_gate_head"] = 1
    if op == "linear":
        types = {key: value for key, value in types.items() if key not in ("beta_ptr", "system_ptr")}
        constants |= {"beta_ptr": None, "system_ptr": None}
    options, name = pairs.options(size, chunks.CHUNK), f"pairs-{op}-{size}"
    return _case(
        *(name, pairs.pairs_kernel, target, dtype, "query key", types, constants, options), matrix=not channels
    )


def chunks_case(target: int, op: str, size: int, dtype: torch.dtype, normed: bool = False) -> Case:
    """Return the case of the walk over chunks."""
    channels = op == "channels"
    types = {"gate_ptr": "*fp32"} | PAIRS | TABLES | NUMBERS
    constants: dict[str, Any] = {"GROUPS": 2, "NORMED": normed, "D": size, "DV": size, "CHANNELS": channels}
    if not channels:
        constants["stride_gate_head"] = 1
    if op == "linear":
        del types["system_ptr"]
        constants["system_ptr"] = None
    options = chunks.options(target, size, size, delta=op != "linear", channels=channels)
    few_rows = options["BLOCK_DV"] < 64
    return _case(
        *(f"chunks-{op}-{size}", chunks.chunks_kernel, target, dtype, "query key value out", types, constants, options),
        *(True, few_rows),
    )


def scan_cases(target: int, dtype: torch.dtype, size: int = 8192, states: int = 16) -> Iterator[Case]:
    """Yield the cases of the scans that go token by token."""
    operands, types = "input step entry readout out", {"transition_ptr": "*fp32"} | TABLES
    constants, options = {"D": size, "N": states}, scan.scan_options(size, states)
    name = f"selective-scan-{size}-{states}"
    yield _case(name, scan.selective_scan_kernel, target, dtype, operands, types, constants, options)
    kernel, constants = scan.linear_recurrence_kernel, {"WIDTH": size}
    name = f"linear-recurrence-{size}"
    yield _case(name, kernel, target, dtype, "input decay out", TABLES, constants, scan.RECURRENCE)


def conv_case(target: int, dtype: torch.dtype, channels: int = 8192, taps: int = 4, bare: bool = False) -> Case:
    """Return the case of causal_conv. A bare one has no bias, initial inputs or activation."""
    types = {"ancestor_ptr": "*i64"}
    constants: dict[str, Any] = {"CHANNELS": channels, "TAPS": taps, "SILU": not bare, "stride_input_channel": 1}
    operands = "input weight out" if bare else "input weight bias initial out"
    if bare:
        constants |= {"bias_ptr": None, "initial_ptr": None}
    name = f"causal-conv-{channels}-{taps}{'-bare' if bare else ''}"
    return _case(name, conv.causal_conv_kernel, target, dtype, operands, types, constants, conv.OPTIONS)


def recurrent_cases(target: int) -> list[Case]:
    """Return the cases of a target."""
    cases = []
    for op in OPS:
        for size, dtype in ((64, SINGLE), (128, SINGLE), (256, SINGLE), (128, HALF)):
            cases += [make(target, op, size, dtype, op != "linear") for make in (pairs_case, chunks_case)]
    for dtype in (SINGLE, HALF):
        cases += [*scan_cases(target, dtype), conv_case(target, dtype), conv_case(target, dtype, bare=True)]
    return cases


def recurrent_sample() -> list[Case]:
    """Return a sample with each kernel, op and size, and three targets."""
    cases = [chunks_case(80, "linear", 64, HALF), chunks_case(90, "delta", 128, SINGLE, True)]
    cases += [chunks_case(90, "channels", 256, HALF), chunks_case(100, "delta", 256, SINGLE)]
    cases += [pairs_case(90, "delta", 128, SINGLE, True), pairs_case(80, "channels", 128, SINGLE)]
    return [*cases, *scan_cases(90, SINGLE), *scan_cases(100, HALF), conv_case(90, SINGLE)]
