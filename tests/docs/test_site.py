"""The documentation builds without a warning, and its reference holds what it should."""

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def test_every_name_of_the_reference_is_there():
    names = [name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    assert len(names) == len(set(names)) > 40
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("package", ["data", "eor", "moi", "noise", "report", "statistics", "study", "sure"])
def test_every_public_name_is_in_the_reference(package):
    documented = {name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}
    module = importlib.import_module(f"fastreader.{package}")
    for name in module.__all__:
        value = getattr(module, name)
        home = getattr(value, "__module__", None) if inspect.isclass(value) or inspect.isfunction(value) else None
        if home is None:
            continue  # a constant stands with the functions it is for
        assert {home, f"{home}.{name}", f"fastreader.{package}.{name}"} & documented, f"{home}.{name}"


def test_strict_build(tmp_path):
    missing = [name for name in ("mkdocs", "mkdocstrings") if importlib.util.find_spec(name) is None]
    if missing:
        required = os.environ.get("FASTREADER_REQUIRE_BROWSER") == "1"
        why = f"needs {', '.join(missing)}: pip install 'fastreader[docs]'"
        (pytest.fail if required else pytest.skip)(why)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "reference" / "study" / "index.html").read_text()
    assert "fastreader.study.run.run_study" in page and "primary" in page
