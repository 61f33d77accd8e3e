"""The examples of docs/noise.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("loaded_once")

ROOT = Path(__file__).parent.parent.parent


def test_the_documentations_examples_run(packaged_folder, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "noise.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "docs/noise.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "(<Kind.RANDOM: 'random'>, <Kind.GOLD: 'gold'>, <Kind.RANDOM: 'random'>)" in printed
    assert "Sensitivity to 6 orderings" in printed
    assert "tokens computed" in printed and "(30, 5)" in printed
