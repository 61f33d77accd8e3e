"""Build the C++ extension (csrc/) if torch and a compiler are available; the rest is in pyproject.toml.

Without them the package still installs and runs on PyTorch only, as `fastreader info` reports. To get the
extension: install torch and a C++20 compiler, then ``pip install --no-build-isolation --force-reinstall --no-deps .``

Development installs (``-e``) compile the kernels of this machine's instruction sets only, which takes two thirds of
the time; others compile all. FASTREADER_ISAS=machine or FASTREADER_ISAS=all says which.

FASTREADER_SANITIZE=1 builds it for `make sanitize`: with AddressSanitizer and UndefinedBehaviorSanitizer, and failing
if it does not compile. Only a process that preloads libasan can import the result.
"""

import os
import platform
import re
import sys
from pathlib import Path

from setuptools import Command, Extension, setup

SANITIZE = os.environ.get("FASTREADER_SANITIZE") == "1"
# -fno-wrapv: CPython is often compiled with -fwrapv, which setuptools adds and which hides overflow of integers.
_SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-fno-wrapv"]
# Of the instruction sets of csrc/isa.h that not every x86 machine has: what Linux calls their instructions.
_ISAS = {
    "avx2": "avx2 fma f16c",
    "avx2_vnni": "avx2 fma f16c avx_vnni",
    "avx512": "avx512f avx512bw avx512dq avx512vl",
    "avx512_vnni": "avx512f avx512bw avx512dq avx512vl avx512_vnni",
    "avx512_bf16": "avx512f avx512bw avx512dq avx512vl avx512_bf16",
    "amx": "avx512_bf16 amx_tile amx_bf16",
}


def left_out(editable: bool) -> list[str]:
    """Return the instruction sets whose kernels are not compiled, since this machine does not have them."""
    wanted = os.environ.get("FASTREADER_ISAS") or ("machine" if editable else "all")
    if wanted not in ("all", "machine"):
        raise SystemExit(f"setup.py: FASTREADER_ISAS must be all or machine, got {wanted!r}")
    cpuinfo = Path("/proc/cpuinfo")
    if wanted == "all" or platform.machine() != "x86_64" or not cpuinfo.exists():
        return []
    found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    return [isa for isa, needs in _ISAS.items() if found and not set(needs.split()) <= set(found[1].split())]


def signatures() -> str:
    """Return the number of the operators' signatures, which is part of the extension's name."""
    found = re.search(
        r"^ABI = (\d+)$", Path("src/fastreader/ops/extension.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    if found is None:
        raise SystemExit("setup.py: src/fastreader/ops/extension.py states no ABI")
    return found[1]


def extension() -> tuple[list[Extension], dict[str, type[Command]]]:
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        print(f"fastreader: no C++ extension, since torch is missing at build time ({error})", file=sys.stderr)
        return [], {}

    class OptionalBuild(BuildExtension):
        """Install the package without the extension if the compiler is missing or fails."""

        def run(self) -> None:
            without = left_out(bool(self.inplace or self.editable_mode))
            if without:
                print(f"fastreader: this machine does not have, and the extension leaves out: {', '.join(without)}")
            for extension in self.extensions:
                extension.extra_compile_args["cxx"] += [f"-DFR_WITHOUT_{isa}=1" for isa in without]
            super().run()

        def build_extensions(self) -> None:
            try:
                super().build_extensions()
            except Exception as error:
                if SANITIZE:
                    raise
                print(f"fastreader: no C++ extension, since it did not build: {error}", file=sys.stderr)

    # Without -fopenmp at::parallel_for runs on one thread, silently. Apple's compiler has no OpenMP, so on macOS
    # csrc/parallel.h runs tasks on the system's own threads.
    openmp = [] if platform.system() == "Darwin" else ["-fopenmp"]
    optimised = ["-O1", "-g", "-fno-omit-frame-pointer", *_SANITIZERS] if SANITIZE else ["-O3", "-g0"]
    module = CppExtension(
        f"fastreader._C{signatures()}",
        sorted(str(path) for path in Path("csrc").glob("*.cpp")),
        depends=sorted(str(path) for pattern in ("*.h", "*.inl") for path in Path("csrc").glob(pattern)),
        extra_compile_args={"cxx": [*optimised, "-std=c++20", "-ffp-contract=fast", "-fvisibility=hidden", *openmp]},
        extra_link_args=[*openmp, *(_SANITIZERS if SANITIZE else [])],
    )
    module.optional = not SANITIZE
    return [module], {"build_ext": OptionalBuild}


modules, commands = extension()
setup(ext_modules=modules, cmdclass=commands)
