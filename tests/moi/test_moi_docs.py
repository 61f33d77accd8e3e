"""The examples of docs/moi*.md run."""

import re
from pathlib import Path

import pytest
from helpers.support import byte_tokenizer, shorter_questions, tiny_llama

pytestmark = pytest.mark.usefixtures("loaded_once")

ROOT = Path(__file__).parents[2]


def run(page, folder, monkeypatch, blocks, model=None):
    """Run a page's examples in `folder`. `model` replaces the packaged model if the examples only have to run."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code) == blocks
    joined = "\n".join(code).replace("examples/questions.jsonl", str(shorter_questions(folder / "questions.jsonl")))
    if model is not None:
        assert '"smollm2-135m"' in joined
        joined = joined.replace('"smollm2-135m"', repr(str(model)))
    monkeypatch.chdir(folder)
    exec(compile(joined, page, "exec"), {})


@pytest.fixture
def tiny(tmp_path):
    tiny_llama(max_position_embeddings=8192).save_pretrained(tmp_path / "tiny")
    byte_tokenizer(chat=True).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_moi(packaged_folder, tmp_path, monkeypatch, capsys):
    run("moi.md", tmp_path, monkeypatch, 3)
    said = capsys.readouterr().out
    assert "of 3N whole orderings" in said
    assert "in matched order; bias: shipped" in said
    assert "tokens for at most 28 questions" in said


def test_baselines(tiny, tmp_path, monkeypatch, capsys):
    run("moi-baselines.md", tmp_path, monkeypatch, 1, tiny)
    said = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["retriever", "best-at-the-ends", "qg", "bayes-saliency-plus", "pairwise"]


def test_distillation(tiny, tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", reason="the student's adapters come from PEFT: pip install 'fastreader[distill]'")
    run("moi-distillation.md", tmp_path, monkeypatch, 1, tiny)
    assert "Evaluation(" in capsys.readouterr().out
    assert (tmp_path / "student" / "merged" / "config.json").is_file()
