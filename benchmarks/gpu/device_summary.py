"""Print a short table of a call's rows: what failed first, then the medians. device_summary.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without one in which its writer was killed, or none if there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"{path}, line {number}: not whole, left out")
    return rows


def line_of(row: dict[str, Any]) -> str | None:
    """Return what to print of a row, or None."""
    case = ", ".join(filter(None, (row.get("case"), row.get("model"))))
    if row["suite"] == "failed" or row.get("wrong"):
        return f"FAILED {case} {row.get('way', '')}: {row.get('why') or 'wrong by ' + str(row['wrong'])}"
    if row["suite"] == "path":
        return f"{case}: {row['way']}; graphs: {row['why'] or 'yes'}"
    if row["suite"] == "accuracy":
        return f"{case}: {row['way']}: mean {row['mean']:.2g}, largest {row['largest']:.2g} nats"
    if "milliseconds" not in row:
        return None
    over = f"{row['milliseconds'] / row['floor']:7.2f} x floor" if row.get("floor") else " " * 15
    graph = f"  {row['graph']:.4f} ms in a graph" if row.get("graph") else ""
    rate = f"  {row['tflops']:.0f} TFLOP/s" if row.get("tflops") else ""
    return f"{row['milliseconds']:9.3f} ms {over}  {case}: {row['way']}{rate}{graph}"


def main(folder: Path) -> None:
    tests = rows_of(folder / "tests.jsonl")
    if tests:
        print("tests", {kind: sum(r["outcome"] == kind for r in tests) for kind in ("passed", "failed", "skipped")})
    for row in tests:
        if row["outcome"] == "failed":
            print("FAILED", row["test"], "|", row["why"].strip().splitlines()[-1][:160])
    for line in filter(None, map(line_of, rows_of(folder / "rows.jsonl"))):
        print(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
