"""The examples of docs/moi.md run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_examples(packaged_folder, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "moi.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "docs/moi.md", "exec"), {})
    said = capsys.readouterr().out
    assert "of 3N whole orderings" in said
    assert "matched shipped" in said
