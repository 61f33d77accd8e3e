"""What the pages say of the evidence is in its report, and the report is that of the stored rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lib import evidence_report

ROOT = Path(__file__).parents[2]
S5, S10 = "smollm2-135m, N = 5, cross-fitted", "smollm2-135m, N = 10, cross-fitted"
G5, G10 = "gemma-3-270m, N = 5, shipped calibration", "gemma-3-270m, N = 10, shipped calibration"
HIDDEN = "smollm2-135m, N = 5, a pool of stored scores"
DECIMAL = re.compile(r"(?<![\w.])[-+−]?\d+\.\d+(?![\w.])")


@cache
def report() -> dict[str, Any]:
    return json.loads((evidence_report.FOLDER / "report.json").read_text(encoding="utf-8"))


def method(run: str, name: str) -> dict[str, Any]:
    return report()[run]["methods"][name]


def lead(run: str, name: str, stratum: str = "") -> str:
    """Return "+0.64 [0.46, 0.82]": nats over the retriever's order."""
    own = method(run, name)
    found = own["strata"][stratum]["nats"] if stratum else own["against"]["nats"]
    return f"{found['estimate']:+.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def tokens(run: str, name: str) -> str:
    return f"{method(run, name)['tokens']:,.0f}"


AVERAGED = "answers-over-orderings"


def averaged(run: str) -> str:
    return lead(run, AVERAGED)


LATER, ABSENT = "gold at 2 to N", "gold not among the N"
CLAIMS: list[Callable[[], str]] = [
    lambda: f"{lead(S5, 'arrange-bm25')} nats of the right answer over the retriever's order with SmolLM2-135M",
    lambda: f"at N = 5 ({method(S5, 'arrange-bm25')['n']} questions), {lead(S10, 'arrange-bm25')} at N = 10",
    lambda: f"({method(S10, 'arrange-bm25')['n']}), {lead(G5, 'arrange-bm25')} with Gemma-3-270M at N = 5",
    lambda: f"({method(G5, 'arrange-bm25')['n']}), {lead(G10, 'arrange-bm25')} at N = 10",
    lambda: f"({method(G10, 'arrange-bm25')['n']})",
    lambda: f"reversed is worth as much: {lead(S5, 'reversed')}, {lead(S10, 'reversed')}, {lead(G5, 'reversed')}",
    lambda: f"and {lead(G10, 'reversed')}.",
    lambda: f"{lead(S5, 'arrange-qg')} and {lead(S10, 'arrange-qg')}",
    lambda: f"lower among the five, {lead(S5, 'arrange-qg', LATER)} against {lead(S5, 'arrange-bm25', LATER)}",
    lambda: f"{lead(S5, 'moi')} and {lead(S10, 'moi')}",
    lambda: f"lower it gains {lead(S5, 'moi', LATER)} and {lead(S10, 'moi', LATER)}",
    lambda: f"{tokens(S5, 'moi')} and {tokens(S10, 'moi')} tokens",
    lambda: f"best first ({lead(S5, 'rerank-qg')}) nor with the best at the ends ({lead(S5, 'best-at-the-ends')}",
    lambda: f"at N = 5, {lead(S10, 'best-at-the-ends')} at N = 10)",
    lambda: f"{lead(HIDDEN, 'uncalibrated-moi')} on {method(HIDDEN, 'uncalibrated-moi')['n']} questions",
    lambda: f"{lead(HIDDEN, 'uncalibrated-arrange')}",
    lambda: f"{lead(G5, 'uncalibrated-moi')} on {method(G5, 'uncalibrated-moi')['n']} with Gemma's own calls",
    lambda: f"{lead(S5, 'moi:paper')} and {lead(S10, 'moi:paper')}",
    lambda: f"for {tokens(S5, 'moi:paper')} and {tokens(S10, 'moi:paper')} tokens",
    lambda: f"Gemma at N = 5 {lead(G5, 'moi:paper')} on {method(G5, 'moi:paper')['n']} questions",
    lambda: f"(`fr.moi.marginal_answer` for answers) gains {averaged(HIDDEN)}",
    lambda: f"(SmolLM2, N = 5, {method(HIDDEN, AVERAGED)['n']} questions)",
    lambda: f"and {averaged(G5)} (Gemma, {method(G5, AVERAGED)['n']})",
    lambda: f"is missing ({lead(HIDDEN, AVERAGED, ABSENT)} and {lead(G5, AVERAGED, ABSENT)})",
    lambda: f"not among the five, arranging by BM25 gives {lead(S5, 'arrange-bm25', ABSENT)}",
]


def words(path: str, title: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    start = text.index(f"## {title}\n")
    return " ".join(text[start : text.find("\n## ", start + 1)].split())


def test_every_figure_of_what_to_use_is_in_the_report():
    text = words("docs/which-method.md", "What to use")
    for claim in [make() for make in CLAIMS]:
        assert claim in text, f"expected {claim!r}"
        text = text.replace(claim, "", 1)
    assert DECIMAL.findall(text) == []


def test_the_readme():
    text = words("README.md", "The methods, and what they gained")
    made = [
        f"{lead(S5, 'arrange-bm25')} nats of the right answer at N = 5, {lead(S10, 'arrange-bm25')} at N = 10",
        f"{lead(G5, 'arrange-bm25')} with Gemma-3-270M",
        f"{lead(S5, 'moi')} and {lead(S10, 'moi')}",
    ]
    for claim in made:
        assert claim in text, f"expected {claim!r}"


def test_bars():
    """The primary contrast on at least 300 questions is above 0, and costs no token of a reader."""
    primary = method(S5, evidence_report.PRIMARY)
    assert primary["n"] >= 300 and primary["against"]["nats"]["low"] > 0 and primary["tokens"] == 0
    for run in (HIDDEN, G5):
        assert method(run, "uncalibrated-moi")["against"]["nats"]["low"] > -0.1, run


@pytest.mark.parametrize("run", [S5, S10, G5, G10, HIDDEN])
@pytest.mark.long(keep=2)
def test_the_report_is_that_of_the_rows(run):
    rows = dict(evidence_report.runs())[run]
    assert rows and all(int(row["id"]) < evidence_report.HELD_OUT for row in rows)
    found = json.loads(json.dumps(evidence_report.summary(rows)))
    assert flat(found) == pytest.approx(flat(report()[run]), abs=1e-9)


def flat(values: Any, at: str = "") -> dict[str, float]:
    """Return the numbers in nested tables, by their path."""
    if isinstance(values, dict):
        return {path: x for key, value in values.items() for path, x in flat(value, f"{at}/{key}").items()}
    return {} if values is None else {at: float(values)}
