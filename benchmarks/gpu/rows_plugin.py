"""pytest -p rows_plugin: a line a test to $OUT/tests.jsonl as results come. As a script: a summary of such a file."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_STARTED = time.time()


def pytest_runtest_logreport(report: Any) -> None:
    """Append a test's result, in the process that sees all of them."""
    if os.environ.get("PYTEST_XDIST_WORKER") or (report.when != "call" and report.outcome == "passed"):
        return
    row = {"test": report.nodeid, "when": report.when, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    row["at"] = round(time.time() - _STARTED, 1)
    if report.failed or report.skipped:
        row["why"] = str(report.longrepr)[-1500:]
    with (Path(os.environ.get("OUT", "/tmp")) / "tests.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    from device_summary import rows_of

    rows = rows_of(Path(sys.argv[1]))
    by_outcome = {kind: [r for r in rows if r["outcome"] == kind] for kind in ("passed", "failed", "skipped")}
    slowest = sorted(((row["seconds"], row["test"].split("::")[-1]) for row in rows), reverse=True)[:5]
    print("tests:", {kind: len(found) for kind, found in by_outcome.items()}, "slowest:", slowest)
