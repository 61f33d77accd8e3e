"""The short table at the end of a call: what failed, and the medians."""

import json
import sys
from pathlib import Path

out = Path(sys.argv[1])
if (out / "tests.jsonl").exists():
    rows = [json.loads(line) for line in (out / "tests.jsonl").read_text().splitlines()]
    print("tests", {k: sum(r["outcome"] == k for r in rows) for k in ("passed", "failed", "skipped")})
    for r in rows:
        if r["outcome"] == "failed":
            print("FAILED", r["test"], "|", r["why"].strip().splitlines()[-1][:160])
if (out / "rows.jsonl").exists():
    for line in (out / "rows.jsonl").read_text().splitlines():
        r = json.loads(line)
        if r["suite"] == "failed" or r.get("wrong"):
            print("WRONG" if r.get("wrong") else "FAILED", r["case"], r.get("way", ""), r.get("wrong", r.get("why")))
        elif r["suite"] == "path":
            print(f"{r['case']}: {r['way']}; graphs: {r['why'] or 'yes'}")
        elif r["suite"] == "accuracy":
            print(f"{r['case']}: {r['way']}: mean {r['mean']:.2g}, largest {r['largest']:.2g} nats")
        elif "milliseconds" in r:
            over = f" {r['milliseconds'] / r['floor']:5.2f} x floor" if r.get("floor") else ""
            print(
                f"{r['milliseconds']:9.3f} ms{over}  {r['case']}: {r['way']}"
                + (f"  {r['tflops']:.0f} TFLOP/s" if r.get("tflops") else "")
            )
