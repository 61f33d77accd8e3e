"""pytest -p rows_plugin: a line a test to $OUT/tests.jsonl as results come; as a script, a summary of that file."""

import json
import os
import sys
import time
from pathlib import Path

_STARTED = time.time()


def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER") or (report.when != "call" and report.outcome == "passed"):
        return  # with xdist the controller sees every report
    row = {"test": report.nodeid, "when": report.when, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    row["at"] = round(time.time() - _STARTED, 1)
    if report.failed:
        row["why"] = str(report.longrepr)[-1500:]
    elif report.skipped:
        row["why"] = str(report.longrepr)[-200:]
    path = Path(os.environ.get("OUT", "/tmp")) / "tests.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    of = {k: [r for r in rows if r["outcome"] == k] for k in ("passed", "failed", "skipped")}
    print(
        "tests:",
        {k: len(v) for k, v in of.items()},
        "slowest:",
        sorted(((r["seconds"], r["test"].split("::")[-1]) for r in rows), reverse=True)[:5],
    )
    for row in of["failed"]:
        print("FAILED", row["test"], "|", row["why"].strip().splitlines()[-1][:200])
