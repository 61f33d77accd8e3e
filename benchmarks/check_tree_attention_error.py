"""Long check: the C++ attention kernels on random trees against float64, and the largest error compared with eager's.

    python benchmarks/check_tree_attention_error.py --trees 10000
    python benchmarks/check_tree_attention_error.py --trees 2000 --variant sinks

Every tree draws its heads, sizes, window, soft cap and query_nodes from its seed, and takes the operand types and
instruction sets one after another. A variant adds sinks, chunks or slopes to each tree, or widens its heads. One line
for each hundred trees is appended to --output, so that a run resumes where an earlier one stopped; at the end they are
summed up. The script stops at the first tree whose error is over the bound of the tests (tests/ops/cpu_cases.py), and
prints its seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ops"))

from attention_variants import VARIANTS, random_variant  # noqa: E402
from cpu_cases import MODES, available, measure, random_case  # noqa: E402
from machine import describe  # noqa: E402

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first tree")
    parser.add_argument("--variant", choices=VARIANTS, help="None: the trees of the tests of plain attention")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "tree_attention_error.jsonl")
    options = parser.parse_args()
    sets = available()
    if not sets:
        sys.exit("the C++ extension is not there")
    lines = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    lines = [line for line in lines if line.get("variant") == options.variant]
    done = {line["seed"] for line in lines if line["instruction_sets"] == sets}
    about = describe()
    for first in range(options.seed, options.seed + options.trees, BATCH):
        if first in done:
            continue
        line = batch(first, min(BATCH, options.seed + options.trees - first), sets, options.variant) | about
        lines.append(line)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
    summary(lines)


def batch(first: int, count: int, sets: list[str], variant: str | None) -> dict[str, object]:
    """The largest errors over `count` trees, by operand type."""
    start = time.monotonic()
    worst = {mode: {"error": 0.0, "eager": 0.0, "share": 0.0, "lse_share": 0.0} for mode in MODES}
    for seed in range(first, first + count):
        mode, isa = MODES[seed % len(MODES)], sets[seed // len(MODES) % len(sets)]
        os.environ["FASTREADER_CPU_ISA"] = isa
        case = random_case(seed) if variant is None else random_variant(seed, variant)
        drawn, subtree_end, query_node, options = case
        got = measure(mode, *drawn, subtree_end, query_node, **options)
        if not (got.error <= got.allowed and got.lse_error <= got.lse_allowed):
            sys.exit(f"seed {seed}, {mode}, {isa}: {got.error} > {got.allowed} or {got.lse_error} > {got.lse_allowed}")
        seen = {
            "error": got.error,
            "eager": got.eager,
            "share": got.error / got.allowed,
            "lse_share": got.lse_error / got.lse_allowed,
        }
        worst[mode] = {name: max(value, seen[name]) for name, value in worst[mode].items()}
    named = {} if variant is None else {"variant": variant}
    return {
        **named,
        "seed": first,
        "trees": count,
        "instruction_sets": sets,
        "largest": worst,
        "seconds": round(time.monotonic() - start, 1),
    }


def summary(lines: list[dict[str, object]]) -> None:
    """Print the largest errors over all lines."""
    print(f"{sum(int(str(line['trees'])) for line in lines)} trees within bounds")
    print("operands   error      eager      of the bound  lse, of its bound")
    for mode in MODES:
        cells = [
            max(line["largest"][mode][name] for line in lines) for name in ("error", "eager", "share", "lse_share")
        ]  # type: ignore[index]
        print(f"{mode:9s}  {cells[0]:.2e}   {cells[1]:.2e}   {cells[2]:.2f}          {cells[3]:.2f}")


if __name__ == "__main__":
    main()
