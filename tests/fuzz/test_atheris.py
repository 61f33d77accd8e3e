"""Harnesses of the parsers: on their examples with random damage in every run, and under atheris in `make fuzz`."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest
from file_mutations import mutated

RUNS = {
    "atheris_specifications": 100_000,
    "atheris_replies": 50_000,
    "atheris_gguf": 20_000,
    "atheris_jsonl": 100_000,
}  # a minute or two each on one core


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.long(keep=1)
def test_damaged_examples(name):
    harness = importlib.import_module(name)
    target, chance = harness.make(), random.Random(0)
    for example in harness.EXAMPLES:
        target(example)
    for case in range(300):
        target(mutated(harness.EXAMPLES[case % len(harness.EXAMPLES)], chance)[1])


@pytest.mark.fuzz
@pytest.mark.parametrize("name", RUNS)
def test_under_atheris(name, tmp_path):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("needs atheris: pip install 'fastreader[fuzz]'")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, example in enumerate(importlib.import_module(name).EXAMPLES):
        (corpus / str(number)).write_bytes(example)
    options = [f"-runs={RUNS[name]}", "-seed=1", "-timeout=20", "-rss_limit_mb=4096", "-max_len=4000"]
    file = Path(__file__).with_name(f"{name}.py")
    done = subprocess.run(
        [sys.executable, str(file), *options, str(corpus)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert f"Done {RUNS[name]} runs" in done.stderr
