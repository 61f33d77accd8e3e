"""Long check: the C++ attention kernels on random trees against float64, the largest error beside the eager one's.

    python benchmarks/check_tree_attention_error.py --trees 10000

Every tree draws its heads, sizes, window, soft cap, anchors, operands and instruction set; the script stops at the
first tree whose error is over the bound of the tests (tests/ops/cpu_cases.py), and prints its seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "ops"))

from cpu_cases import available
from test_tree_attention_cpu import MODES, random_forest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sets = available()
    if not sets:
        sys.exit("the C++ extension is not there")
    start = time.monotonic()
    for tree in range(options.trees):
        mode, isa = MODES[tree % len(MODES)], sets[tree // len(MODES) % len(sets)]
        try:
            random_forest(options.seed + tree, mode, isa)
        except AssertionError as error:
            sys.exit(f"seed {options.seed + tree}, {mode}, {isa}: {error}")
        if (tree + 1) % 1000 == 0:
            print(f"{tree + 1} trees within bounds, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
