"""The examples of docs/eor.md run."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "eor.md"


def test_examples_run(packaged_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert names["vote"].winner is not None and len(names["answers"].texts) == 4
    assert names["voter"].score(names["texts"], names["right"]) >= 2 / 3
    assert (tmp_path / "voter.json").exists()
