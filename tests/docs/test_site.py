"""The documentation builds without a warning, and its reference holds what it should."""

import importlib
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


def test_strict_build(tmp_path):
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'fastreader[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs mkdocstrings: pip install 'fastreader[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "reference" / "study" / "index.html").read_text()
    assert "fastreader.study.run.run_study" in page and "primary" in page
