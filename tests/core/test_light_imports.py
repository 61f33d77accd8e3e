"""What a machine that only runs models must have: torch, transformers, numpy, scipy, and what these need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIGHT = ("core", "models", "ops", "reader", "scoring", "permutations", "errors")
# A server's replies are checked by pydantic.
FEATURES = ("fastreader.reader.remote",)
# Of what this project installs, the packages on a machine for CUDA programs that nobody prepared for it.
PREPARED = """
accelerate anyio attrs certifi charset-normalizer click colorama contourpy cycler execnet filelock fonttools fsspec h11
h5py hf-xet httpcore httpx huggingface-hub hypothesis idna iniconfig jinja2 joblib kiwisolver markdown-it-py markupsafe
matplotlib mdurl mpmath networkx ninja numpy packaging pandas peft pillow pip pluggy protobuf psutil py-cpuinfo pyarrow
pygments pyparsing pytest pytest-benchmark pytest-cov pytest-timeout pytest-xdist python-dateutil pyyaml regex requests
rich safetensors scikit-learn scipy sentencepiece sentence-transformers setuptools shellingham six sortedcontainers
sympy tabulate threadpoolctl tokenizers torch tqdm transformers triton typer typing-extensions urllib3 wheel
"""
SCRIPT = """
import importlib, importlib.metadata, pkgutil, re, sys

plain = lambda name: re.match(r"[\\w.-]+", name)[0].lower().replace("_", "-")
lacking = set(map(plain, importlib.metadata.requires("fastreader"))) - set({prepared!r}.split()) - {{"fastreader"}}
lacking |= {{"pydantic-core"}}
homes = importlib.metadata.packages_distributions()
absent = {{top for top, names in homes.items() if lacking >= set(map(plain, names))}}
assert {{"pydantic", "pydantic_core", "bm25s"}} <= absent

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
IMPORTS = """
for name in {light}:
    module = importlib.import_module(f"fastreader.{{name}}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
        if not found.name.startswith({features}):
            importlib.import_module(found.name)
            print(found.name)
import fastreader
fastreader.Reader, fastreader.score_permutations, fastreader.Passage
assert "pydantic" not in sys.modules and "typer" not in sys.modules and "rich" not in sys.modules
"""
COLLECTS = """
import pytest
sys.path[:0] = ["benchmarks/gpu", "benchmarks"]
import beside_fla, bench_ops, bench_pass, device_kernels, device_passes, device_reader, device_summary, one_kernel
import rows_plugin, small_calls, smoke
sys.exit(pytest.main(["-q", "-o", "addopts=", "-p", "no:langsmith_plugin", "-m", "gpu", "--collect-only", "tests/gpu"]))
"""


def run(code: str) -> str:
    script = SCRIPT.format(prepared=PREPARED) + code
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_models_readers_and_scoring_import_without_the_packages_of_features() -> None:
    assert len(run(IMPORTS.format(light=LIGHT, features=FEATURES)).split()) > 100


def test_tests_and_benchmarks_of_gpus_need_no_package_of_features() -> None:
    assert run(COLLECTS).count("::") > 300
