"""Launch every kind of kernel once, each in a separate process: which ones do not work on a device shows here first."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch
import transformers
import triton
from small_calls import CASES

CALLS = Path(__file__).with_name("small_calls.py")
TIMEOUT = 45  # seconds of a case; all run at once
HUNG = 124  # as `timeout` exits


def run(case: str) -> tuple[str, int, float, str]:
    """Return a case, its exit status, its seconds and the end of what it said."""
    started = time.time()
    command = [sys.executable, str(CALLS), case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return case, HUNG, time.time() - started, f"hangs, ended after {TIMEOUT} s"
    return case, done.returncode, time.time() - started, (done.stdout + done.stderr)[-1200:]


def main() -> None:
    versions = {module.__name__: module.__version__ for module in (torch, triton, transformers)}
    print(sys.version.split()[0], versions, torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    failed = 0
    with ThreadPoolExecutor(len(CASES)) as pool:
        for future in as_completed([pool.submit(run, case) for case in CASES]):  # one that hangs hides no other
            case, code, seconds, said = future.result()
            failed += code != 0
            print(
                f"{'FAIL' if code else 'ok  '} {case} {seconds:.1f} s" + (f" (exit {code})\n{said}" if code else ""),
                flush=True,
            )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
