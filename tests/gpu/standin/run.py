"""Run tests/gpu on a GPU that is not there, each file in a process: `make gpu-standin TORCH=DIR TRITON=DIR`.

    python tests/gpu/standin/run.py --torch DIR --triton DIR [--others DIR] [--jobs N] [FILE ...] [OPTION ...]
    python tests/gpu/standin/run.py --torch DIR --triton DIR --compiled

Other options go to pytest. Without files, the largest shapes are left out unless there is a `-k`. With --compiled each
kind of kernel is compiled for sm_90 and launched, on a driver that checks launches and descriptors and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build import DRIVER, build

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "standin"
TWO_DEVICES = {"test_devices_gpu.py", "test_ops_gpu.py", "test_pool_gpu.py"}
# Tests at the shapes of real models, of which one may take ten minutes in the interpreter.
LARGEST = ("test_linear_attention_and_delta_rules", "test_logprob", "test_model_shapes", "test_w1_in_bfloat16")
ON_PATH = ("tests/gpu", "src", "tests", "tests/ops", "benchmarks/gpu", "benchmarks")
TIMEOUT = 1800  # seconds for one test: the interpreter is slow
HOW = """\
make gpu-standin needs PyTorch's CUDA build (a wheel of 530 MB) and Triton in folders, for this Python. None of NVIDIA's
packages is needed:

    python -m pip install --no-deps --target build/wheels/torch torch==2.11.0
    python -m pip install --target build/wheels/triton triton==3.6.0 transformers==5.17.0 'numpy<2.4'
    make gpu-standin TORCH=build/wheels/torch TRITON=build/wheels/triton

PyPI's torch for Linux is the CUDA build; if pip is set to another index, add --index-url https://pypi.org/simple, and
if it is set to a folder of wheels, PIP_FIND_LINKS= PIP_CONFIG_FILE=/dev/null before the command. Triton 3.6's
interpreter needs a NumPy before 2.4. torch 2.13.0 and triton 3.7.1 ran with NumPy 2.4 and transformers 5.23. Folders
that OTHERS="DIR ..." names come before these two."""


def main() -> int:
    """Build the stand-ins, run the files, print a line for each, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Run tests/gpu on a GPU that is not there.", allow_abbrev=False)
    parser.add_argument("--torch", default="", help="Folder with an unpacked wheel of PyTorch for CUDA 13.")
    parser.add_argument("--triton", default="", help="Folder with Triton, and what else is to be found before others.")
    parser.add_argument("--others", action="append", default=[], help="A folder that comes before these two.")
    parser.add_argument("--compiled", action="store_true", help="Check launches of compiled kernels instead.")
    parser.add_argument("--jobs", type=int, default=1, help="Files to run at a time.")
    arguments, rest = parser.parse_known_args()
    if not arguments.torch or not arguments.triton:
        print(HOW, file=sys.stderr)
        return 2
    torch, *others = (Path(name).resolve() for name in (arguments.torch, arguments.triton, *arguments.others))
    _check(torch, others)
    build(torch, BUILD / "lib")
    named = [part for part in rest if (ROOT / part.partition("::")[0]).exists()]
    options = [part for part in rest if part not in named]
    if not named:  # a later -k replaces it
        options = ["-k", f"not ({' or '.join(LARGEST)})", *options]
    targets = named or [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))]
    (BUILD / "logs").mkdir(parents=True, exist_ok=True)
    environment = _environment([*others[1:], torch, others[0]])
    if arguments.compiled:
        return _compiled(environment)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(lambda target: _run(target, options, environment), targets))
    return int(any(codes))


def _check(torch: Path, others: list[Path]) -> None:
    extension = torch / "torch" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not extension.exists():
        raise SystemExit(
            f"{extension} is missing: expected PyTorch for this Python ({sys.version.split()[0]})\n\n{HOW}"
        )
    if not any((folder / "triton").is_dir() for folder in others):
        raise SystemExit(f"{others[0]}: expected a folder with the package triton\n\n{HOW}")


def _environment(folders: list[Path]) -> dict[str, str]:
    libraries = str((BUILD / "lib" / DRIVER).parent)
    paths = [*map(str, folders), *(str(ROOT / name) for name in ON_PATH)]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")])),
        "TRITON_LIBCUDA_PATH": libraries,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "FAKEGPU_LOG": str(BUILD / "logs" / "fakegpu.log"),
        "FAKECUDA_LOG": str(BUILD / "logs" / "fakecuda.log"),
        "FASTREADER_CACHE": str(BUILD / "cache"),  # measured rates of another PyTorch do not hold here
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _compiled(environment: dict[str, str]) -> int:
    """Launch compiled kernels on the driver that checks them, and return 1 if it refused one."""
    log = BUILD / "logs" / "fakecuda.log"
    log.unlink(missing_ok=True)
    # Without assertions: what a case would compare was not computed.
    command = [sys.executable, "-O", "-m", "standin.launches"]
    changed = {"TRITON_INTERPRET": "0", "FAKECUDA_LOG": str(log), "TRITON_CACHE_DIR": str(BUILD / "triton")}
    return int(subprocess.run(command, cwd=ROOT, env={**environment, **changed}, check=False).returncode != 0)


def _run(target: str, options: list[str], environment: dict[str, str]) -> int:
    """Run one file, write a log, print its last line, and return 1 if it failed. Collecting nothing is no failure."""
    name = Path(target.partition("::")[0]).name
    log = BUILD / "logs" / f"{Path(name).stem}.log"
    devices = "2" if name in TWO_DEVICES else "1"
    command = [sys.executable, "-m", "pytest", "-p", "standin.fakegpu", "-p", "no:cacheprovider", "-p", "no:warnings"]
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        code = subprocess.run(
            [*command, "-q", f"--timeout={TIMEOUT}", *options, target],
            cwd=ROOT,
            env={**environment, "FAKEGPU_DEVICES": devices},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    end = next((line.strip("= ") for line in reversed(lines) if line), "nothing was printed")
    seconds = time.monotonic() - started
    state = f"ended by signal {-code} after " if code < 0 else ""
    print("\n".join([*failed, f"{target}: {state}{end} [{seconds:.0f} s, {log.relative_to(ROOT)}]"]), flush=True)
    return int(code not in (0, 5))


if __name__ == "__main__":
    sys.exit(main())
