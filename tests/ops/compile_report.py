"""Compile every Triton kernel ahead of time for every target, without a GPU, and report the results.

`python tests/ops/compile_report.py` prints a sample of the cases as a table, and with `--full` writes all of them to
build/compile-report.md; `--write FILE` names another file. `make compile-report` writes all in bfloat16 and float32.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from compile_case import DTYPES, NAMES, Case
from compile_recurrent import recurrent_cases, recurrent_sample
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.knobs import nvidia

from fastreader.ops.decode_attention import triton as decode
from fastreader.ops.linear_logprob import triton as logprob
from fastreader.ops.merge_state import triton as merge
from fastreader.ops.pointwise import triton as pointwise
from fastreader.ops.tree_attention import triton as attention_launch
from fastreader.ops.tree_attention import triton_config as attention
from fastreader.ops.tree_attention.triton_kernel import tree_attention_kernel
from fastreader.ops.triton_support import TARGETS

REPORT = Path(__file__).parents[2] / "build" / "compile-report.md"
SHARED_LIMIT = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes a program
# The matrix instruction of half types. sm_120 has no tcgen05, so Triton uses mma.sync.
MATRIX = {80: "mma.sync", 89: "mma.sync", 90: "wgmma", 100: "tcgen05", 120: "mma.sync"}
MATRIX_PATTERN = {
    "mma.sync": re.compile(r"\bmma\.sync\."),
    "wgmma": re.compile(r"\bwgmma\.mma_async\."),
    "tcgen05": re.compile(r"\btcgen05\.mma\."),
}
# For each bucket of configurations, its largest size or a padded one; with 576 come values of 512.
SIZES = (40, 64, 96, 128, 192, 256, 512, 576)


_HEAD = """# Compile report

Every Triton kernel (docs/kernels.md), compiled ahead of time by Triton {version} and its ptxas. `variant` has three
query heads per key head, a window, a soft cap, lse and a value size 8 below the key size; `attention-*-decode` and
`few` are tiles of 16 rows; `decode-*` is `decode_attention`, whose variant has a window, a soft cap, sinks and
slopes. `block` is M x N x D x Dv (padded) for attention, rows x vocabulary x hidden columns for logprob, rows x Dv
for merging, rows x width for rms-norm, rows x half x rest for rotary, width for gate, tokens x D (x Dv) for the
recurrences' pairs and chunks, channels (x states) for the other scans, and tokens x channels for causal-conv. The
type is that of the inputs, and for rms-norm, rotary and gate that of the output. `stack` and `shared` are bytes.

"""


class Loop(NamedTuple):
    """Instructions of a loop, and how many of them copy to shared memory by addresses in registers (cp.async)."""

    instructions: int
    copies: int


@dataclass(frozen=True)
class Compiled:
    """A compiled case."""

    case: Case
    registers: int
    spilled: int  # bytes of stack
    shared: int  # bytes
    instructions: tuple[str, ...]  # kinds of matrix instruction
    described: bool  # loads tiles by the tensor memory accelerator
    binary: bytes = field(repr=False)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Innermost loops with matrix instructions, in the order of the code. Only a few tests need the disassembly."""
        return loops_of(dumped("-sass", self.binary))

    def faults(self) -> list[str]:
        """Return the faults of the kernel. Empty for none."""
        case, faults = self.case, []
        if self.spilled:
            faults.append(f"{self.spilled} bytes of stack")
        if self.shared > SHARED_LIMIT[case.target]:
            faults.append(f"{self.shared} bytes of shared memory, over {SHARED_LIMIT[case.target]}")
        if self.described != any(type_.startswith("tensordesc") for type_ in case.types.values()):
            faults.append("the tensor memory accelerator is " + ("used" if self.described else "not used"))
        split = case.split or case.constants.get("SPLIT")
        if (case.dtype == torch.float32 and not split) or not case.matrix:
            if self.instructions:
                faults.append(f"matrix instructions in {NAMES[case.dtype]}: {self.instructions}")
        elif (MATRIX[case.target] if not case.few_rows else "mma.sync") not in self.instructions:
            faults.append(f"no {MATRIX[case.target]}, found {self.instructions}")
        return faults


def options_of(
    config: attention.TreeAttentionConfig | logprob.LinearLogprobConfig | decode.DecodeAttentionConfig,
) -> dict[str, int]:
    """Return compiler options, as the launchers pass them."""
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return options if not config.max_registers else options | {"maxnreg": config.max_registers}


def attention_case(
    target: int,
    size: int,
    dtype: torch.dtype,
    *,
    decode: bool = False,
    variant: bool = False,
    terms: bool = False,
    packed: int | None = None,
    split: bool = False,
    config: attention.TreeAttentionConfig | None = None,
) -> Case:
    """Return a case of tree_attention.

    Args:
        target, size, dtype: as the launcher takes them; values have this size, at most 512.
        decode: few rows, and partial states.
        variant: grouped heads, window, soft cap, lse and another value size.
        terms: sinks and slopes besides a variant.
        packed: heads packed as rows; None packs 3 in a variant, else 1.
        split: float32 operands as sums of two bfloat16 terms, where pinned.
        config: instead of the pinned one.
    """
    variant = variant or terms
    packed = packed or (3 if variant else 1)
    rows = 1 if decode else 4096
    config = config or attention.default_config(target, size, dtype, rows, terms=terms, plain=not variant, split=split)
    split = config.split
    value_size = min(max(size - 8, 8) if variant else size, 512)
    block_d, block_rest = attention_launch.head_blocks(size)
    element = NAMES[dtype]
    types = dict.fromkeys(("query_ptr", "key_ptr", "value_ptr"), f"*{element}")
    types |= {"out_ptr": "*fp32" if decode else f"*{element}", "query_node_ptr": "*i32"}
    types |= dict.fromkeys(("subtree_end_ptr", "tile_ptr", "block_start_ptr", "block_stop_ptr"), "*i32")
    types |= dict.fromkeys(("scale", "scale_log2", "softcap"), "fp32")
    constants = dict.fromkeys(("stride_query_size", "stride_key_size", "stride_value_size"), 1)
    constants |= {"D": size, "DV": value_size, "HEADS_PACKED": packed, "HEAD_CHUNKS": 1}
    constants |= {"WINDOW": variant, "SOFTCAP": variant, "UPCAST": False, "SPLIT": split}
    constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
    constants |= {
        "BLOCK_D": block_d,
        "BLOCK_REST": block_rest,
        "BLOCK_DV": max(triton.next_power_of_2(value_size), 16),
    }
    if variant or decode:
        types["lse_ptr"] = "*fp32"
    else:
        constants["lse_ptr"] = None
    if variant:
        types |= dict.fromkeys(("query_position_ptr", "key_position_ptr"), "*i32")
    else:
        constants |= {"query_position_ptr": None, "key_position_ptr": None}
    if packed == 1:
        constants["heads_a_key"] = 1
    if config.described:
        types["key_desc"] = f"tensordesc<{element}[{config.block_n}, {size}]>"
        types["value_desc"] = f"tensordesc<{element}[{config.block_n}, {value_size}]>"
    else:
        constants |= {"key_desc": None, "value_desc": None}
    if terms:
        types |= dict.fromkeys(("sink_ptr", "slope_ptr"), "*fp32")
    else:
        constants |= {"sink_ptr": None, "slope_ptr": None}
    kind = "-decode" if decode else ""
    kind += "-terms" if terms else "-variant" if variant else "-high" if split else ""
    name = f"attention-{size}{kind}"
    return Case(
        name,
        tree_attention_kernel,
        target,
        dtype,
        True,
        config.block_m < 64,
        types,
        constants,
        options_of(config),
    )


def logprob_case(
    target: int,
    dtype: torch.dtype,
    *,
    few: bool = False,
    stats: bool = True,
    capped: bool = False,
    width: int = 576,
    rows: int = 4096,
    terms: int = 1,
    config: logprob.LinearLogprobConfig | None = None,
) -> Case:
    """Return a case of linear_logprob as a pass calls it, with arg-max. With `stats` also entropy, bias and labels."""
    rows = 1 if few else rows
    config = config or logprob.default_config(
        target, dtype, rows, capped=capped, width=width, entropy=stats, terms=terms
    )
    element = NAMES[dtype]
    types = {"hidden_ptr": f"*{element}", "weight_ptr": f"*{element}", "target_ptr": "*i64", "picked_ptr": "*fp32"}
    types |= {"max_ptr": "*fp32", "sum_ptr": "*fp32", "argmax_ptr": "*i32"}
    types |= dict.fromkeys(("scale", "scale_log2", "softcap"), "fp32")
    optional = {"tilt_ptr": "*fp32", "bias_ptr": f"*{element}", "label_ptr": "*i64"}
    optional["label_logit_ptr"] = "*fp32"
    constants: dict[str, Any] = {"stride_hidden_width": 1, "stride_weight_width": 1, "SOFTCAP": capped}
    constants |= {"UPCAST": False, "BLOCK_R": config.block_r, "BLOCK_V": config.block_v, "BLOCK_E": config.block_e}
    constants |= {"SWAPPED": config.swapped, "EVEN": width % config.block_e == 0, "LOWEST": -1.0e30}
    if stats:
        types |= optional
    else:
        constants |= dict.fromkeys(optional)
    if target in logprob._TMA_TARGETS and dtype != torch.float32:
        types |= {
            "hidden_desc": f"tensordesc<{element}[{config.block_r}, {config.block_e}]>",
            "weight_desc": f"tensordesc<{element}[{config.block_v}, {config.block_e}]>",
        }
    else:
        constants |= {"hidden_desc": None, "weight_desc": None}
    if terms == 1:
        constants |= {"low_ptr": None, "low_desc": None}
    else:
        types |= {"low_ptr": f"*{element}"}
        of_hidden = {"low_desc": types["hidden_desc"]} if "hidden_desc" in types else {}
        types |= of_hidden
        constants |= {} if of_hidden else {"low_desc": None}
    size = "-few" if few else "-64" if rows <= 64 else "-wide" if width >= 2048 else ""
    size += "-high" if terms > 1 else ""
    name = f"logprob{size}{'-stats' if stats else ''}{'-capped' if capped else ''}"
    return Case(
        name,
        logprob.linear_logprob_kernel,
        target,
        dtype,
        True,
        (config.block_v if config.swapped else config.block_r) < 64,
        types,
        constants,
        options_of(config),
    )


def decode_case(target: int, size: int, dtype: torch.dtype, *, groups: int = 3, variant: bool = False) -> Case:
    """Return a case of decode_attention as writing calls it. A variant has a window, a soft cap, sinks and slopes."""
    config = decode.default_config(size, dtype)
    element = NAMES[dtype]
    types = dict.fromkeys(("query_ptr", "key_ptr", "other_key_ptr", "value_ptr", "other_value_ptr"), f"*{element}")
    types |= dict.fromkeys(("out_ptr", "lse_ptr"), "*fp32") | dict.fromkeys(("scale", "scale_log2", "softcap"), "fp32")
    tables = ("row_ptr_ptr", "part_ptr", "start_ptr", "stop_ptr", "offset_ptr", "position_ptr")
    types |= dict.fromkeys(tables, "*i32")
    block = max(triton.next_power_of_2(size), 16)
    constants: dict[str, Any] = {"D": size, "DV": size, "WINDOW": int(variant), "SOFTCAP": variant, "UPCAST": False}
    constants["BLOCK_M"], constants["HEAD_CHUNKS"] = decode.packed_heads(groups, dtype)
    constants["BLOCK_N"] = config.block_n
    constants |= {"BLOCK_D": block, "BLOCK_DV": block}
    if variant:
        types |= dict.fromkeys(("sink_ptr", "slope_ptr"), "*fp32")
    else:
        constants |= {"sink_ptr": None, "slope_ptr": None}
    name = f"decode-{size}{f'-{groups}-heads' if groups > 16 else ''}{'-variant' if variant else ''}"
    few = constants["BLOCK_M"] < 64
    return Case(name, decode.decode_attention_kernel, target, dtype, True, few, types, constants, options_of(config))


def join_case(target: int) -> Case:
    """Return the case of linear_logprob's second kernel with all results."""
    kernel = logprob.join_kernel
    types = {name: "*fp32" for name in kernel.arg_names if name.endswith("_ptr")}
    types |= {"argmax_ptr": "*i32", "best_ptr": "*i64", "scale": "fp32", "scale_log2": "fp32"}
    constants = {"BLOCK_R": logprob._JOIN_ROWS, "BLOCK_S": logprob._JOIN_SPLITS, "LOWEST": -1.0e30}
    return Case("logprob-join", kernel, target, torch.float32, False, False, types, constants, {"num_warps": 4})


def merge_cases(target: int, dtype: torch.dtype) -> Iterator[Case]:
    """Yield the cases of merge_state: two states and a stack."""
    element = NAMES[dtype]
    launch = merge.options(512)
    shape = {name: launch[name] for name in ("DV", "BLOCK_R", "BLOCK_DV")}
    warps = {"num_warps": launch["num_warps"]}
    types = dict.fromkeys(("out_a_ptr", "out_b_ptr", "out_ptr"), f"*{element}")
    types |= dict.fromkeys(("lse_a_ptr", "lse_b_ptr", "lse_ptr"), "*fp32")
    strides = dict.fromkeys(("stride_out_a_size", "stride_out_b_size"), 1)
    yield Case("merge-pair", merge.merge_pair_kernel, target, dtype, False, False, types, shape | strides, warps)
    types = {"part_ptr": "*fp32", "part_lse_ptr": "*fp32", "out_ptr": f"*{element}", "lse_ptr": "*fp32"}
    yield Case("merge-stack", merge.merge_stack_kernel, target, dtype, False, False, types, shape, warps)


def pointwise_cases(target: int, dtype: torch.dtype, width: int = 4096, size: int = 128) -> Iterator[Case]:
    """Yield the cases of rms_norm, rotary and gate. `dtype` is that of the output."""
    out = {"out_ptr": f"*{NAMES[dtype]}"}
    block, rows, warps = pointwise.norm_tile(width)
    types = {"input_ptr": "*fp32", "weight_ptr": "*fp32", "epsilon": "fp32"} | out
    constants: dict[str, Any] = {"WIDTH": width, "BLOCK_R": rows, "BLOCK_E": block}
    yield Case(
        f"rms-norm-{width}",
        pointwise.rms_norm_kernel,
        target,
        dtype,
        False,
        False,
        types,
        constants,
        {"num_warps": warps},
    )
    types = dict.fromkeys(("input_ptr", "cosine_ptr", "sine_ptr"), "*fp32") | out
    for name, half in ((f"rotary-{size}", size // 2), (f"rotary-{size}-partial", size // 4)):
        block, rest, rows = pointwise.rotary_tile(size, half)
        constants = {"HEADS": 8, "TURNED": 8, "SIZE": size, "HALF": half}
        constants |= {"BLOCK_R": rows, "BLOCK_HALF": block, "BLOCK_REST": rest}
        yield Case(name, pointwise.rotary_kernel, target, dtype, False, False, types, constants, {"num_warps": 4})
    for given, silu in itertools.product(("fp32", "bf16"), (True, False)):
        types = dict.fromkeys(("gate_ptr", "up_ptr"), f"*{given}") | out
        constants = {"WIDTH": width, "SILU": silu, "BLOCK_F": pointwise.gate_tile(width)}
        name = f"gate-{width}-{'silu' if silu else 'gelu'}" + ("" if given == "fp32" else "-of-bf16")
        yield Case(name, pointwise.gate_kernel, target, dtype, False, False, types, constants, {"num_warps": 4})


def sizes_of(dtype: torch.dtype) -> tuple[int, ...]:
    """Return the head sizes that the launcher takes in this type."""
    return SIZES[:-1] if dtype == torch.float32 else SIZES


def full_cases() -> list[Case]:
    """Return the cases of all pinned configurations."""
    cases = []
    for target in TARGETS:
        for dtype in DTYPES:
            for size in sizes_of(dtype):
                cases += [attention_case(target, size, dtype, variant=variant) for variant in (False, True)]
                cases.append(attention_case(target, size, dtype, terms=True))
                cases.append(attention_case(target, size, dtype, decode=True))
                if target == 90 and size in (64, 128):
                    cases.append(attention_case(target, size, dtype, packed=3, split=dtype == torch.float32))
                if size <= 512:
                    cases += [decode_case(target, size, dtype, variant=variant) for variant in (False, True)]
            cases.append(decode_case(target, 128, dtype, groups=32))
            for stats, capped in itertools.product((False, True), repeat=2):
                cases.append(logprob_case(target, dtype, stats=stats, capped=capped))
            cases.append(logprob_case(target, dtype, few=True, capped=True))
            cases += [logprob_case(target, dtype, stats=stats, rows=64, capped=stats) for stats in (False, True)]
            cases.append(logprob_case(target, dtype, stats=False, width=4096))
            if dtype == torch.bfloat16:
                for width, rows in ((576, 4096), (4096, 4096), (576, 64)):
                    cases.append(logprob_case(target, dtype, stats=False, width=width, rows=rows, terms=2))
            cases += merge_cases(target, dtype)
        cases.append(join_case(target))
        for dtype, width, size in (
            (torch.bfloat16, 576, 64),
            (torch.float32, 4096, 128),
            (torch.bfloat16, 16_384, 256),
        ):
            cases += pointwise_cases(target, dtype, width, size)
        cases += recurrent_cases(target)
    return cases


def default_cases() -> list[Case]:
    """Return a sample with each target, head size, type, kernel and feature, but not every combination."""
    cases = []
    for i, target in enumerate(TARGETS):
        half = DTYPES[i % 2]
        cases.append(attention_case(target, SIZES[(i + 1) % 6], half, variant=i % 3 != 2))
        cases.append(attention_case(target, SIZES[(i + 3) % 6], torch.float32, variant=i % 2 == 0))
        cases.append(logprob_case(target, half, capped=i % 2 == 0))
    cases += [attention_case(target, size, torch.bfloat16, decode=True) for target, size in ((80, 256), (100, 40))]
    cases += [decode_case(90, 64, torch.bfloat16), decode_case(100, 128, torch.float16, variant=True)]
    cases += [decode_case(80, 512, torch.bfloat16, variant=True), decode_case(120, 256, torch.float32)]
    cases += [attention_case(80, 512, torch.bfloat16, variant=True), attention_case(120, 576, torch.float16)]
    cases += [attention_case(90, 64, torch.bfloat16, terms=True), attention_case(89, 512, torch.float32, terms=True)]
    cases += [attention_case(90, size, torch.float32, packed=3, split=True) for size in (64, 128)]
    cases.append(logprob_case(90, torch.float32, capped=True))
    cases.append(logprob_case(80, torch.bfloat16, few=True, stats=False))
    cases += [logprob_case(90, torch.bfloat16, stats=False, width=4096), logprob_case(120, torch.float16, rows=64)]
    cases += [logprob_case(90, torch.bfloat16, stats=False, rows=64), join_case(90)]
    cases.append(logprob_case(90, torch.bfloat16, stats=False, width=4096, terms=2))
    cases += [*merge_cases(90, torch.bfloat16), *merge_cases(120, torch.float32)]
    cases += [*pointwise_cases(90, torch.bfloat16), *pointwise_cases(89, torch.float32, 16_384, 256)]
    return cases + recurrent_sample()


def signature_of(case: Case) -> tuple[dict[str, str], dict[tuple[int], Any], list[tuple[int]]]:
    """Return types by argument, constants by position, and the positions of arguments divisible by 16."""
    kernel = case.kernel
    names = kernel.arg_names
    types = {name: "constexpr" if name in case.constants else case.types.get(name, "i32") for name in names}
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    unaligned = {*kernel.do_not_specialize, *kernel.do_not_specialize_on_alignment}
    aligned = [
        (i,)
        for i, name in enumerate(names)
        if name not in unaligned and types[name] not in ("constexpr", "fp32") and not name.endswith("_desc")
    ]
    return types, constants, aligned


def dumped(asked: str, binary: bytes) -> str:
    """Return what cuobjdump prints about a binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [nvidia.cuobjdump.path, asked, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compile_case(case: Case) -> Compiled:
    """Compile one case and read registers and stack from the binary, matrix instructions from the PTX."""
    options = case.options | {"enable_fp_fusion": True}
    types, constants, aligned = signature_of(case)
    source = ASTSource(
        fn=case.kernel,
        signature=types,
        constexprs=constants,
        attrs={path: [["tt.divisibility", 16]] for path in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", case.target, 32), options=options)
    binary = compiled.asm["cubin"]
    usage = dumped("-res-usage", binary)
    counts = {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    ptx = compiled.asm["ptx"]
    instructions = tuple(name for name, pattern in MATRIX_PATTERN.items() if pattern.search(ptx))
    described = "cp.async.bulk.tensor" in ptx
    return Compiled(*(case, counts["REG"], counts["STACK"], compiled.metadata.shared, instructions, described, binary))


def loops_of(code: str) -> tuple[Loop, ...]:
    """Return the loops with matrix instructions of disassembled code: what a branch backwards repeats."""
    listed = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", code)
    place = {int(address, 16): i for i, (address, _) in enumerate(listed)}
    found = []
    for i, (_, text) in enumerate(listed):
        target = re.search(r"BRA.*?(0x[0-9a-f]+)", text)
        first = place.get(int(target[1], 16)) if target else None
        if first is not None and first <= i:
            body = [text for _, text in listed[first : i + 1]]
            if any("GMMA" in text or "HMMA" in text for text in body):
                found.append(Loop(len(body), sum("LDGSTS" in text for text in body)))
    return tuple(found)


def table(results: list[Compiled]) -> str:
    """Return a Markdown table of the results."""
    lines = [
        "| target | kernel | type | block | warps | stages | registers | stack | shared | matrix | faults |",
        "|-|-|-|-|-|-|-|-|-|-|-|",
    ]
    for result in results:
        case = result.case
        block = "x".join(str(v) for k, v in case.constants.items() if k == "CHUNK" or k.startswith("BLOCK_"))
        lines.append(
            f"| sm_{case.target} | {case.name} | {NAMES[case.dtype]} | {block} | {case.options['num_warps']} "
            f"| {case.options.get('num_stages', '')} | {result.registers} | {result.spilled} | {result.shared} "
            f"| {', '.join(result.instructions)} | {'; '.join(result.faults())} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every combination; takes minutes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", nargs="+", choices=NAMES.values(), default=list(NAMES.values()))
    parser.add_argument("--write", type=Path, help="file of the report; with --full build/compile-report.md by default")
    arguments = parser.parse_args()
    cases = full_cases() if arguments.full else default_cases()
    cases = [case for case in cases if NAMES[case.dtype] in arguments.types]
    with ThreadPoolExecutor(arguments.threads) as pool:
        results = list(pool.map(compile_case, cases))
    path = arguments.write or (REPORT if arguments.full else None)
    if path is None:
        print(table(results))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{_HEAD.format(version=triton.__version__)}{table(results)}\n")
    faulty = sum(bool(result.faults()) for result in results)
    print(f"{len(results)} kernels, {faulty} with faults: {path}")


if __name__ == "__main__":
    main()
