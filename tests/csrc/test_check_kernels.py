"""The C++ kernels compared with plain loops, without torch: the program that `make arm64` runs in an emulator."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4")
COMPILER = shutil.which("g++") or shutil.which("clang++")
no_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
pytestmark = [no_compiler, pytest.mark.long]  # compiling the program takes most of a minute


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build the program with the portable kernels alone. All of them would take a minute."""
    folder = tmp_path_factory.mktemp("kernels")
    others = sorted(path.stem for path in (ROOT / "csrc").glob("kernels_*.cpp") if path.stem != "kernels_portable")
    absent = folder / "absent.cpp"
    stubs = "".join(f"const Kernels* {name}(Mode) {{ return nullptr; }}\n" for name in others)
    absent.write_text(f'#include "kernels.h"\nnamespace fastreader {{\n{stubs}}}\n')
    kernels = [ROOT / "csrc" / name for name in ("isa.cpp", "block_packing.cpp", "kernels_portable.cpp")]
    command = [COMPILER, "-std=c++20", "-Og", "-ffp-contract=fast", f"-I{ROOT / 'csrc'}", "-o", folder / "check"]
    subprocess.run([*command, ROOT / "tests/csrc/check_kernels.cpp", absent, *kernels], check=True)
    return folder / "check"


def test_the_portable_kernels_agree_with_plain_loops(program):
    done = subprocess.run([program, "portable"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "portable: 0 values outside their bounds"
    others = "attention f32", "attention f32 terms", "linear_logprob f32", "rms_norm"
    blocks = [f"blocks {mode} {name}" for mode in ("f32", "scaled") for name in FORMATS]
    for kernel in ("linear f32", "linear widened", "linear scaled", *blocks, *others):
        assert any(line.split(None, 1)[1].startswith(f"{kernel} ") for line in lines[:-1]), kernel


def test_an_unknown_instruction_set_is_an_error(program):
    done = subprocess.run([program, "sse9"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "unknown instruction set sse9\n")
