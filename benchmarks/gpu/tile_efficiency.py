"""Count the tile efficiency of the Triton kernel on the workloads from its schedule. Needs no device.

`python benchmarks/gpu/tile_efficiency.py` prints the table in docs/kernels.md.
"""

from __future__ import annotations

from gpu_workloads import WORKLOADS

from fastreader.core.tree import PrefixTree
from fastreader.ops.tree_attention.plan import AttentionPlan

BLOCKS = ((128, 64), (128, 32), (64, 32))


def efficiency(tree: PrefixTree, groups: int, block_m: int, block_n: int) -> tuple[float, float]:
    """Return (useful / executed multiply-adds, share of the visited blocks that need no mask)."""
    schedule = AttentionPlan(tree.subtree_end).schedule(None, block_m // groups, block_n)
    whole = schedule.block_full & (schedule.block_stop - schedule.block_start == block_n)
    useful = int((tree.positions + 1).sum())  # a query sees its path
    return useful * groups / (len(whole) * block_m * block_n), float(whole.mean())


def main() -> None:
    print("| workload | tokens | " + " | ".join(f"{m}x{n}" for m, n in BLOCKS) + " | unmasked blocks at 128x64 |")
    print("|-|-|" + "-|" * (len(BLOCKS) + 1))
    for name, make in WORKLOADS.items():
        tree = make()
        rates = [efficiency(tree, 3, m, n) for m, n in BLOCKS]
        cells = " | ".join(f"{rate:.3f}" for rate, _ in rates)
        print(f"| {name} | {len(tree):,} | {cells} | {rates[0][1]:.2f} |")


if __name__ == "__main__":
    main()
