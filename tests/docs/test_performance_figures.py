"""The figures of the page on performance match the stored rows, wherever rows are stored."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, Any]]:
    lines = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def table(title: str, number: int = 0) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = [block for block in section.split("\n\n") if block.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in blocks[number].splitlines()[2:]]


def whole(value: float) -> str:
    return f"{value:,.0f}"


def test_growth():
    (run,) = rows("scaling")
    expected = []
    for row in run["rows"]:
        flops = row["flops"]
        expected.append(
            [
                *(str(row["passages"]), str(row["candidates"]), whole(row["given"]), whole(row["computed"])),
                *(f"{row['seconds']:.2f}", f"{1e6 * row['seconds'] / row['computed']:.0f}"),
                f"{100 * flops['attention'] / sum(flops.values()):.0f} %",
            ]
        )
    assert table("Growth") == expected and len(expected) == 16


def test_growth_in_words():
    (run,) = rows("scaling")
    at = {(row["passages"], row["candidates"]): row for row in run["rows"]}

    def growth(of):
        values = [f"{of(at[40, k]) / of(at[5, k]):.0f}" for k in (1, 4, 16, 64)]
        return f"{', '.join(values[:3])} and {values[3]} times"

    said = (
        f"computed tokens grow {growth(lambda r: r['computed'])}, useful multiply-adds "
        f"{growth(lambda r: sum(r['flops'].values()))}, seconds {growth(lambda r: r['seconds'])}"
    )
    assert said in PAGE


WAYS = {
    "fast by bf16": "fastreader, fast by bf16",
    "fast by int16": "fastreader, fast by int16",
    "fast by float32": "fastreader, fast by float32",
    "high": "fastreader, high",
    "exact": "fastreader, exact",
    "transformers bf16, prefix cache": "transformers, bf16",
    "vLLM 0.32 on the CPU, bf16": "vLLM, bf16",
}


@pytest.mark.parametrize("line", table("Accuracy"), ids=lambda line: line[0])
def test_accuracy(line):
    label, *shown = line
    way, found, vllm = WAYS[label], rows("accuracy"), {row["id"]: row["values"] for row in rows("accuracy.vllm")}
    for row in found:
        row["values"]["vLLM, bf16"] = vllm[row["id"]]
    kinds = np.array([kind for row in found for kind in row["kinds"]])
    values = {name: np.array([v for row in found for v in row["values"][name]]) for name in (way, "float32")}
    error, cells = np.abs(values[way] - values["float32"]), []
    for kind in ("candidate", "question"):
        own = error[kinds == kind]
        digits = 4 if own.max() < 0.01 else 3
        largest = f"{own.max():.{4 if digits == 4 else 2}f}"
        cells.append(f"{own.mean():.{digits}f}, {np.quantile(own, 0.95):.{digits}f}, {largest}")
    taus = []
    for row in found:
        own = [i for i, kind in enumerate(row["kinds"]) if kind == "question"]
        taus.append(kendalltau(*([row["values"][name][i] for i in own] for name in (way, "float32"))).statistic)
    assert shown == [*cells, f"{np.nanmean(taus):.3f}"]
    assert f"{len(found)} real questions" in PAGE and f"{len(error):,} sequences" in PAGE


@pytest.mark.parametrize("line", table("Accuracy", 1), ids=lambda line: line[0])
def test_accuracy_of_the_second_reader(line):
    label, *shown = line
    way = "transformers, bf16" if label.startswith("transformers") else f"fastreader, {label}"
    found = [row for row in rows("accuracy.gemma") if "values" in row]
    kinds = np.array([kind for row in found for kind in row["kinds"]])
    values = {name: np.array([v for row in found for v in row["values"][name]]) for name in (way, "float32")}
    error, cells = np.abs(values[way] - values["float32"]), []
    for kind in ("candidate", "question"):
        own = error[kinds == kind]
        digits = 4 if own.max() < 0.02 else 3
        cells.append(
            f"{own.mean():.{digits}f}, {np.quantile(own, 0.95):.{digits}f}, {own.max():.{4 if digits == 4 else 2}f}"
        )
    assert shown == cells
    assert f"{len(found)} questions, 3 passages" in PAGE and f"{len(error)} sequences" in PAGE


FROM_FILES = {"smollm2-135m": "accuracy.file", "gemma-3-270m": "accuracy.gemma.file", "1B, random": "accuracy.1b.file"}


@pytest.mark.parametrize("line", table("Accuracy", 2), ids=lambda line: " ".join(line[:2]))
def test_accuracy_from_the_integers_of_a_file(line):
    reader, label, *shown = line
    found = rows(FROM_FILES[reader])
    assert all(row["settings"]["dtype"] == "file" for row in found)
    kinds = np.array([kind for row in found for kind in row["kinds"]])
    way = f"fastreader, fast by {label}"
    error = np.abs(
        np.array([v for row in found for v in row["values"][way]])
        - np.array([v for row in found for v in row["values"]["float32"]])
    )
    digits = 4 if error.max() < 0.05 else 3
    cells = [
        f"{own.mean():.{digits}f}, {np.quantile(own, 0.95):.{digits}f}, {own.max():.{digits}f}"
        for own in (error, error[kinds == "candidate"], error[kinds == "question"])
    ]
    assert shown == [f"{len(found)}, {len(error)}", *cells]


def test_real_sizes(monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS.parent))
    report = importlib.import_module("sizes").report
    section = PAGE.partition("\n## At real sizes\n")[2].partition("\n## ")[0]
    found = sorted(RESULTS.glob("sizes.*.jsonl"))
    assert found
    for path in found:
        lines = report(rows(path.stem)).splitlines()
        assert [line for line in lines if line.startswith("|") and line not in section] == []
        assert rows(path.stem)[0]["machine"]["commit"] in section


def test_the_second_reader_against_float64():
    (row,) = [row["values"] for row in rows("accuracy.gemma") if "float64" in row.get("values", {})]
    truth = np.array(row["float64"])
    off = {name: np.abs(np.array(row[name]) - truth).max() for name in ("float32", "fastreader, exact")}
    assert f"up to {off['float32']:.1e} nats from float64".replace("e-04", "e-4") in PAGE
    assert f'"exact" up to {off["fastreader, exact"]:.1e}' in PAGE


def test_other_stacks():
    speed = rows("rerank_speed")
    commit = speed[0]["commit"]
    first, many = {}, {}
    for row in (row for row in speed if row["commit"] == commit):
        (first if "ratio" in row else many)[row["precision"]] = row
    served = {row["packing"]: row for row in rows("server_load") if "packing" in row}
    harness = {row["way"]: row["seconds"] for row in rows("lm_eval_shared") if row["requests"] == 20}
    found = [line[1:] for line in table("In other stacks")]

    def ranked(precision):  # three questions each
        seconds = first[precision]["seconds"]
        return f"{seconds['fastreader'] / 3:.2f} s", f"{seconds['transformers'] / 3:.2f} s"

    def together(precision):
        seconds = many[precision]["seconds"]
        return f"{seconds['one call']:.1f} s", f"{seconds['one at a time']:.1f} s"

    def load(packing):
        row = served[packing]
        return f"p50 {row['p50']:.2f} s, p95 {row['p95']:.2f} s", f"{row['requests_per_second']:.1f}"

    ratios = [f"{first[p]['ratio']:.2f}" for p in ("fast", "exact")]
    rates = [f"{many[p]['rate']:.2f}" for p in ("fast", "exact")]
    fast, exact = ranked("fast"), ranked("exact")
    ours, theirs = together("fast"), together("exact")
    assert found[:4] == [
        [fast[0], f"transformers float32, one padded batch: {fast[1]}", f"{ratios[0]} of the time"],
        [exact[0], exact[1], ratios[1]],
        [ours[0], f"one at a time: {ours[1]}", f"{rates[0]} times the rate"],
        [theirs[0], theirs[1], rates[1]],
    ]
    times = harness["hflm"] / harness["fastreader"]
    assert found[4][0] == f"{harness['fastreader']:.1f} s" and found[4][1].endswith(f"{harness['hflm']:.1f} s")
    assert found[4][2] == f"{times:.1f} times as fast"
    packed, alone = load(True), load(False)
    gain = served[True]["requests_per_second"] / served[False]["requests_per_second"]
    assert found[5] == [
        f"{packed[1]} requests a second, {packed[0]}",
        f"`--no-pack`: {alone[1]} a second, {alone[0]}",
        f"{gain:.1f} times the rate",
    ]
