"""One launch of every kind of kernel, each in a process of its own, in parallel; the first run of a device shows here."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

CASES = ("attention64", "attention128", "attention_pointers", "attention_high", "attention_split", "logprob", "logprob_wide",
         "logprob_few", "logprob_high", "decode", "pointwise", "recurrent", "flash", "product", "graph")  # fmt: skip

if __name__ == "__main__":
    import torch
    import transformers
    import triton

    print(sys.version.split()[0], "torch", torch.__version__, "triton", triton.__version__, "transformers", transformers.__version__,
          torch.cuda.get_device_name(), torch.cuda.get_device_capability())  # fmt: skip

    def run(case: str) -> tuple[str, int, float, str]:
        started = time.time()
        done = subprocess.run(
            [sys.executable, __file__.replace("smoke.py", "small_calls.py"), case],
            capture_output=True,
            text=True,
            timeout=55,
        )
        return case, done.returncode, time.time() - started, (done.stdout + done.stderr)[-1200:]

    bad = 0
    with ThreadPoolExecutor(8) as pool:
        for case, code, seconds, said in pool.map(run, CASES):
            bad += code != 0
            print(
                f"{'ok  ' if code == 0 else 'FAIL'} {case} {seconds:.1f} s"
                + ("" if code == 0 else f" (exit {code})\n{said}"),
                flush=True,
            )
    sys.exit(bool(bad))
