"""The benchmark scripts of generation and SuRe, on a tiny model: every way writes the same, and what they report."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest
from helpers.support import QUESTIONS, byte_tokenizer, tiny_llama

pytestmark = pytest.mark.usefixtures("loaded_once")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(where)
    byte_tokenizer().save_pretrained(where)
    return str(where)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def run_main(monkeypatch, module, *arguments):
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments)])
    module.main()


@pytest.fixture
def work(script, folder):
    arguments = argparse.Namespace(data=None, passages=2, k=2, questions=2, model=folder, max_summary_tokens=4)
    return script("sure_cost").prepare(arguments)


def test_every_way_of_sure_cost_gives_the_same(script, folder, work):
    ways = script("sure_cost_ways")
    assert set(ways.UNCACHED) < set(ways.WAYS)
    for way, precision in (("fastreader", "exact"), ("transformers", "float32"), ("transformers_uncached", "float32")):
        told = ways.child(folder, work, way, precision)
        assert [set(took) for took in told["seconds"]] == 2 * [set(ways.STAGES)]
        for replies, question in zip(told["replies"], work, strict=True):
            assert [len(replies[stage]) for stage in ways.STAGES] == [2, 4, 4]
            for stage in ("validity", "ranking"):
                assert replies[stage] == pytest.approx(question[stage]["expected"], abs=1e-3)
            texts = [text.strip() for text in replies["summaries"]]
            assert texts == [text.strip() for text in question["summaries"]["expected"]]


def test_warming_up_is_not_timed(script, folder, work, monkeypatch):
    ways = script("sure_cost_ways")
    calls = []
    monkeypatch.setattr(ways, "fastreader_runner", lambda model, precision: lambda request: calls.append(request) or [])
    ways.child(folder, work, "fastreader", "exact")
    assert len(calls) == 2 + 2 * len(ways.STAGES)
    assert [len(call["prompts"]) for call in calls[:2]] == [1, 1]


def test_the_bars_of_sure_cost_by_hand(script, capsys):
    cost, ways = script("sure_cost"), script("sure_cost_ways")
    ours, theirs, uncached = list(ways.WAYS)[1], list(ways.WAYS)[3], ways.UNCACHED[1]

    def took(*totals):
        return {"seconds": [{"summaries": t - 0.2, "validity": 0.1, "ranking": 0.1} for t in totals]}

    runs = {ours: [took(1.0, 3.0), took(1.0, 5.0), took(1.0, 5.0)], theirs: 3 * [took(2.0, 8.0)], uncached: [took(9.0)]}
    record = {"k": 2, "tokens": {"summaries": [1000, 540], "validity": [100, 50], "ranking": [100, 80]}}
    found = {bar["name"]: bar for bar in cost.bars(record, runs)}
    values = {name: (round(bar["value"], 4), bar["bound"], bar["reached"]) for name, bar in found.items()}
    assert values == {
        "prompt tokens of stages 2 to 4 computed, share": (0.5583, 0.55, False),
        "prompt tokens of stage 2 computed, share": (0.54, 0.55, True),
        f"{ours}: times faster than {theirs}": (1.6667, 2.0, False),  # 10 seconds against 6
        f"{ours}: times faster than {uncached}": (9.0, 2.0, True),  # the first question alone
    }


def test_sure_cost_as_it_is_run(script, folder, monkeypatch, tmp_path, capsys):
    cost, ways = script("sure_cost"), script("sure_cost_ways")
    monkeypatch.setattr(cost.machine, "gemm_rate", lambda dtype: 1.0)
    asked = {}

    def spawn(model, work, way):
        asked.setdefault(way, []).append(len(work))
        return ways.child(model, work, *ways.WAYS[way])

    monkeypatch.setattr(cost, "spawn", spawn)
    output = tmp_path / "results" / "cost.jsonl"
    small = ("--questions", 2, "--passages", 1, "--max-summary-tokens", 2, "--rounds", 2, "--output", output)
    run_main(monkeypatch, cost, "--model", folder, *small)
    assert asked == {way: [1] if way in ways.UNCACHED else [2, 2] for way in ways.WAYS}
    shown = capsys.readouterr().out
    assert shown.count("times faster than") == 4
    assert "no cache at all, fp32 | 1 |" in shown
    assert len(json.loads(output.read_text())["bars"]) == 6


@pytest.mark.parametrize("workload", ["64x1", "10x1", "4x1"])
def test_every_way_of_generation_writes_the_same(script, folder, workload):
    module = script("generation")
    arguments = argparse.Namespace(device="cpu", model=folder, new=4, prompt=60, rows=3, steps=workload == "4x1")
    first, *others = (module.child(arguments, workload, way, "fp32" if way != "tree" else "exact") for way in WRITERS)
    assert [len(row) for row in first["tokens"]] == [4, 4, 4]
    assert first["computed"] > 0
    assert all(other["tokens"] == first["tokens"] for other in others)


WRITERS = ("tree", "prefix_cached", "padded")


def test_check_generation(script, folder, monkeypatch, tmp_path, capsys):
    module = script("check_generation")
    arguments = (QUESTIONS, "--model", folder, "--questions", 3, "--passages", 1, "--new", 6, "--batch", 2)
    run_main(monkeypatch, module, *arguments, "--output", tmp_path / "out.jsonl")
    told = capsys.readouterr().out
    assert told.startswith("3 prompts, ") and " differ" in told
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    # A text of ours with one token changed parts from transformers' there, by more than rounding.
    import transformers

    from fastreader import Reader, load_examples

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    prompt = module.prompt(reader, load_examples(QUESTIONS)[0], 1)
    (text,) = reader.generate([prompt], max_new_tokens=6)[0]
    wrong = [*text.token_ids[:3], (text.token_ids[3] + 1) % 256 + 5, *text.token_ids[4:]]
    row = module.compare(model, prompt, wrong, 6, reader.end_tokens)
    assert row["first_difference"] == 3
    assert row["gap"] > module.TIE
