"""Build the stand-ins: libcudart and libcuda of this folder, and forms of NVIDIA's other libraries that do nothing.

    python tests/gpu/standin/build.py TORCH_FOLDER OUTPUT_FOLDER

What they must define is read from the wheel, so that any version of PyTorch for CUDA 13 is served. CUDA_HOME names the
folder with CUDA's headers (/usr/local/cuda).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PARTS = "parts"  # the folder of what is written and compiled on the way
RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
# Symbols without a version, by the library that has them; all other libraries give their symbols versions.
UNVERSIONED = {
    "libcufile": r"cuFile",
    "libcusparseLt": r"cusparseLt",
    "libnccl": r"nccl",
    "libcurand": r"curand",
    "libcuda": r"cu(?!File)[A-Z]",
}
VERSIONS = {"libnvshmem_host": "NVSHMEM"}  # where the version's name is not the library's
PRODUCT = re.compile(r"cublas.*[gG]emm")


def main() -> None:
    """Build for the wheel that the command line names."""
    parser = argparse.ArgumentParser(description="Build the stand-ins for a wheel of PyTorch.")
    parser.add_argument("torch", type=Path, help="Folder in which the wheel is unpacked.")
    parser.add_argument("output", type=Path, help="Folder for the libraries.")
    arguments = parser.parse_args()
    build(arguments.torch, arguments.output)


def build(torch: Path, output: Path) -> None:
    """Build all libraries that a wheel of PyTorch needs of CUDA."""
    headers = _headers()
    objects = sorted(torch.glob("torch/lib/*.so")) + sorted(torch.glob("torch/_C*.so"))
    if not objects:
        raise SystemExit(f"{torch}: expected a folder with an unpacked wheel of PyTorch, found no torch/lib/*.so")
    libraries = needed(objects)
    if RUNTIME not in libraries:
        raise SystemExit(f"{torch}: expected PyTorch built for CUDA 13, which needs {RUNTIME}; it needs {libraries}")
    (output / PARTS).mkdir(parents=True, exist_ok=True)
    versioned, plain = undefined(objects)
    _runtime(output, headers, versioned.get(RUNTIME, set()))
    _driver(output, headers, _matching(plain, DRIVER))
    for library in libraries:
        if library not in (RUNTIME, DRIVER):
            version = VERSIONS.get(_stem(library), library)
            _stub(output, library, versioned.get(version, set()), _matching(plain, library), version)


def needed(objects: list[Path]) -> list[str]:
    """Return the libraries of NVIDIA's that shared objects link to."""
    found = set()
    for path in objects:
        found |= set(re.findall(r"NEEDED.*\[(libcu[^\]]*|libnv[^\]]*|libnccl[^\]]*)\]", _output("readelf", "-d", path)))
    return sorted(found)


def undefined(objects: list[Path]) -> tuple[dict[str, set[str]], set[str]]:
    """Return what shared objects leave undefined: symbols by their version, and those without one."""
    versioned: dict[str, set[str]] = {}
    plain: set[str] = set()
    for line in _output("nm", "-D", "--undefined-only", *objects).splitlines():
        symbol, at, version = line.split()[-1].partition("@") if " U " in line or " w " in line else ("", "", "")
        if at:
            versioned.setdefault(version.lstrip("@"), set()).add(symbol)
        elif symbol:
            plain.add(symbol)
    return versioned, plain


def defined(library: Path) -> set[str]:
    """Return the names that a library or an object file defines."""
    lines = _output("nm", "--defined-only", *([] if library.suffix == ".o" else ["-D"]), library).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.strip()}


def _runtime(output: Path, headers: Path, symbols: set[str]) -> None:
    sources = sorted(HERE.glob("cudart*.cpp"))
    _compile("g++", "-std=c++20", "-g", *sources, headers=headers, library=output / RUNTIME, version=RUNTIME)
    if missing := sorted(symbols - defined(output / RUNTIME)):
        raise SystemExit(f"cudart*.cpp lack functions that this PyTorch needs: {', '.join(missing)}")


def _driver(output: Path, headers: Path, symbols: set[str]) -> None:
    # The others are compiled without cuda.h, to whose declarations they would not conform.
    own = output / PARTS / "cuda.o"
    _run("gcc", "-O1", "-w", "-fPIC", f"-I{headers}", "-c", HERE / "cuda.c", "-o", own)
    rest = output / PARTS / "cuda_rest.c"
    rest.write_text("".join(f"long {symbol}() {{ return 0; }}\n" for symbol in sorted(symbols - defined(own))))
    _compile("gcc", own, rest, headers=headers, library=output / DRIVER)


def _stub(output: Path, library: str, versioned: set[str], plain: set[str], version: str) -> None:
    """Build a library whose functions return 0, except for libraries.h and for products, which use a workspace."""
    macro = f"-DLIBRARY_{_stem(library).removeprefix('lib')}"
    own = output / PARTS / f"{library}.o"
    _run("gcc", "-O1", "-w", "-fPIC", macro, "-x", "c", "-c", HERE / "libraries.h", "-o", own)
    lines = [f'#include "{HERE / "libraries.h"}"\n']
    for symbol in sorted((versioned | plain) - defined(own)):
        product = "cublas.so" in library and PRODUCT.match(symbol)
        lines.append(
            f"int {symbol}(Handle *handle) {{ return product(handle); }}\n"
            if product
            else f"long {symbol}() {{ return 0; }}\n"
        )
    source = output / PARTS / f"{library}.c"
    source.write_text("".join(lines))
    links = [output / RUNTIME] if "cublas" in library else []
    _compile("gcc", macro, source, *links, library=output / library, version=version if versioned else None)


def _compile(
    compiler: str, *inputs: str | Path, library: Path, headers: Path | None = None, version: str | None = None
) -> None:
    options: list[str | Path] = [f"-Wl,-soname,{library.name}"]
    if headers is not None:
        options.append(f"-I{headers}")
    if version is not None:
        script = library.parent / PARTS / f"{library.name}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    _run(compiler, "-O1", "-w", "-shared", "-fPIC", *inputs, "-o", library, *options, "-ldl")


def _headers() -> Path:
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    headers = home / "include"
    for name in ("cuda.h", "cuda_runtime_api.h"):
        if not (headers / name).exists():
            raise SystemExit(f"{headers / name} is missing: install CUDA 13's headers; CUDA_HOME names their folder")
    found = re.search(r"#define CUDA_VERSION (\d+)", (headers / "cuda.h").read_text(encoding="utf-8", errors="replace"))
    if found is None or int(found[1]) // 1000 != 13:
        raise SystemExit(f"{headers}: expected the headers of CUDA 13, got {found[1] if found else 'unknown'}")
    for tool in ("g++", "gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: install a C++ compiler with its binary tools (on Debian: g++)")
    return headers


def _stem(library: str) -> str:
    return library.partition(".so")[0]


def _matching(symbols: set[str], library: str) -> set[str]:
    pattern = UNVERSIONED.get(_stem(library))
    return {symbol for symbol in symbols if re.match(pattern, symbol)} if pattern else set()


def _run(*command: str | Path) -> None:
    if subprocess.run([str(part) for part in command], check=False).returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}")


def _output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
