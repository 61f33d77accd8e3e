"""Launch each kind of compiled kernel on a driver that checks and logs launches: `run.py --compiled`.

Grids, shared memory, registers and descriptors are checked as an H100 would (cuda.c). Nothing is computed: what
a kernel would write stays 0.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from standin import fakegpu


def main() -> int:
    """Run the cases, print a line for each, and return 1 if one launched nothing, failed, or was refused."""
    fakegpu.enable()
    torch.empty = torch.zeros  # type: ignore[assignment]  # so that ids that no kernel writes are ids
    import small_calls

    log, failed = Path(os.environ["FAKECUDA_LOG"]), 0
    small_calls.near = torch.testing.assert_close = lambda *_, **__: None
    for name, call in small_calls.CASES.items():
        before = len(_lines(log))
        trouble = _trouble(call)
        lines = _lines(log)[before:]
        refused = [line for line in lines if "BAD" in line]
        launched = sum(line.startswith("launch ") for line in lines)
        maps = sum(line.startswith("tensormap ") for line in lines)
        wrong = trouble or refused or not (launched or name in WITHOUT)
        failed += bool(wrong)
        said = f"{'FAIL' if wrong else 'ok  '} {name}: {launched} launches, {maps} descriptors"
        print("\n".join(filter(None, [said, *refused, trouble])), flush=True)
    return int(failed > 0)


WITHOUT = ("product", "graph", "flash")  # cases whose kernels are not Triton's


def _trouble(call: Callable[[], Any]) -> str:
    """Return why a case failed."""
    try:
        call()
    except Exception:
        return traceback.format_exc()[-1500:]
    return ""


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


if __name__ == "__main__":
    sys.exit(main())
