"""The figures of the pages on MoI match the stored reports, and the reports match the stored rows."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib import moi_report

from fastreader.passages.conflicts.judge import WEIGHTS
from fastreader.passages.sufficiency.model import WEIGHTS as SUFFICIENCY

pytestmark = pytest.mark.usefixtures("loaded_once")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "moi-baselines.md"
ALIASES = {  # names of the tables' rows that are not names of methods
    "random, mean of its draws": ["random-mean"],
    "best-at-the-ends, long-context-reorder": ["best-at-the-ends", "long-context-reorder"],
    "moi-prefixes (no calibration)": ["moi-prefixes"],
}
DECIMAL = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?![\w.])")
EARLIER, LATER = "gold at rank 1", "gold at rank 2 to N"


@cache
def report(n: int) -> dict[str, Any]:
    return json.loads((ROOT / "studies" / "results" / f"moi{n}" / "report.json").read_text(encoding="utf-8"))


def methods(n: int) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in report(n)["methods"]}


def contrast(n: int, against: str, measure: str = "nats") -> dict[str, Any]:
    """Return the lead of moi-calibrated over another order."""
    return next(c for c in report(n)["contrasts"] if (c["against"], c["measure"]) == (against, measure))


def reversal(n: int, name: str) -> dict[str, Any]:
    """Return what an order loses in nats when it is reversed."""
    return next(c for c in report(n)["polarity"] if (c["name"], c["measure"]) == (name, "nats"))


def lead(n: int, stratum: str, over: str) -> dict[str, Any]:
    own = next(m for m in report(n)["strata"][stratum]["methods"] if m["name"] == over)
    return {"difference": own["lead"], "mde": own["mde"], "n": report(n)["strata"][stratum]["questions"]}


def nats(n: int, name: str) -> float:
    return methods(n)[name]["nats"]["estimate"]


def said(found: dict[str, Any], digits: int = 2, sign: int = 1, plus: str = "") -> str:
    """Return "estimate [low, high]", of the opposite difference for a `sign` of -1."""
    values = found["difference"]
    low, high = sorted((sign * values["low"], sign * values["high"]))
    return f"{sign * values['estimate']:{plus}.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def said_nats(found: dict[str, Any], digits: int = 2, sign: int = 1, plus: str = "") -> str:
    """Return "estimate nats [low, high]"."""
    return said(found, digits, sign, plus).replace(" [", " nats [")


# What the page says of a run, sentence by sentence, made of the report.
CLAIMS: dict[int, list[Callable[[], str]]] = {
    5: [
        lambda: f"qg-matched is {said_nats(contrast(5, 'qg-matched'), 3)}, p {contrast(5, 'qg-matched')['p']:.2f}",
        lambda: f"effect at power 0.8 was {contrast(5, 'qg-matched')['mde']:.3f}",
        lambda: f"less often, by {said(contrast(5, 'qg-matched', 'contained'), 3, -1)}",
        lambda: f"gains {said_nats(contrast(5, 'retriever'))} over the retriever's order",
        lambda: f"and {said(contrast(5, 'random-mean'))} over random orders",
        lambda: (
            f"first passage is gold for {report(5)['strata'][EARLIER]['questions']} of the {report(5)['questions']}"
        ),
        lambda: f"({nats(5, 'pairwise-matched'):.2f} and {nats(5, 'bayes-saliency-matched'):.2f})",
        lambda: (
            f"loses nothing ({reversal(5, 'moi-joint')['difference']['estimate']:.2f} nats, "
            f"p {reversal(5, 'moi-joint')['p']:.2f})"
        ),
        lambda: f"reversing the calibrated one {reversal(5, 'moi-calibrated')['difference']['estimate']:.2f}.",
        lambda: f"For the {lead(5, LATER, 'reversed')['n']} questions",
        lambda: f"leads the reversed list by {said_nats(lead(5, LATER, 'reversed'))}",
        lambda: f"the detectable effect was {lead(5, LATER, 'reversed')['mde']:.2f}",
        lambda: (
            f"leads moi-calibrated by {said_nats(contrast(5, 'oracle'), 2, -1).replace('-0.00', '0.00')} on the "
            f"{contrast(5, 'oracle')['n']} questions"
        ),
        lambda: (
            f"reads its best first, {nats(5, 'random-mean') - nats(5, 'moi-prefixes'):.2f} nats below random orders"
        ),
        lambda: f"uninformative here (0 to {max(m['em']['estimate'] for m in report(5)['methods']):.1%})".replace(
            "%", " %"
        ),
    ],
    10: [
        lambda: (
            f"difference: {said_nats(contrast(10, 'qg-matched'), 3, plus='+')}, p {contrast(10, 'qg-matched')['p']:.2f}"
        ),
        lambda: f"the detectable effect was {contrast(10, 'qg-matched')['mde']:.3f}",
        lambda: f"gains {said_nats(contrast(10, 'retriever'))} over the retriever's order",
        lambda: f"and {said(contrast(10, 'random-mean'))} over random orders",
        lambda: f"({lead(10, LATER, 'reversed')['n']} questions)",
        lambda: f"leads the reversed list by {said_nats(lead(10, LATER, 'reversed'))}",
        lambda: f"the detectable effect was {lead(10, LATER, 'reversed')['mde']:.2f}",
        lambda: (
            f"first ({lead(10, EARLIER, 'reversed')['n']} questions), moi-calibrated is "
            f"{said(lead(10, EARLIER, 'reversed'), 2, -1).replace(' [', ' behind [')}".replace(
                # the page gives the interval of the lead, so that its sign is that of the other leads
                said(lead(10, EARLIER, "reversed"), 2, -1).partition(" ")[2],
                said(lead(10, EARLIER, "reversed")).partition(" ")[2],
            )
        ),
        lambda: (
            f"give the same ({said_nats(contrast(10, 'moi-calibrated-3n'))} less) for "
            f"{methods(10)['moi-calibrated-3n']['tokens'] / methods(10)['moi-calibrated']['tokens']:.1f} times"
        ),
        lambda: f"calibrated order loses {reversal(10, 'moi-calibrated')['difference']['estimate']:.2f} nats",
        lambda: (
            f"of the joint solve {reversal(10, 'moi-joint')['difference']['estimate']:.2f} "
            f"(p {reversal(10, 'moi-joint')['p']:.2f})"
        ),
        lambda: (
            f"The oracle leads by {said_nats(contrast(10, 'oracle'), 2, -1)} on the "
            f"{contrast(10, 'oracle')['n']} questions"
        ),
    ],
}
UNSTORED = {10: ["it has +0.8, and the next +0.3"]}  # of the calibrations, see test_biases


def section(title: str, page: Path = PAGE, level: str = "###") -> str:
    """Return a section of a page, up to the next heading of its level."""
    text = page.read_text(encoding="utf-8")
    start = text.index(f"{level} {title}\n")
    end = text.find(f"\n{level} ", start + 1)
    return text[start : end if end > 0 else None]


@pytest.mark.parametrize("n", CLAIMS)
def test_tables(n):
    rows = [line for line in section(f"What came out at N = {n}").splitlines() if line.startswith("| ")]
    assert rows[0] == "| order | nats of the right answers | contained | tokens for the order |"
    for line in rows[1:]:
        label, *shown = (cell.strip() for cell in line.strip("|").split("|"))
        for name in ALIASES.get(label, [label]):
            own = methods(n)[name]
            contained = f"{own['contained']['estimate']:.3f}"
            assert shown == [f"{own['nats']['estimate']:.2f}", contained, f"{own['tokens']:,.0f}"], (n, name)
    assert len(rows) > 10


@pytest.mark.parametrize("n", CLAIMS)
def test_sentences(n):
    """Each sentence made of the report is on the page, and no decimal of the page's is left over."""
    lines = [line for line in section(f"What came out at N = {n}").splitlines() if not line.startswith("|")]
    text = " ".join(" ".join(lines).split())
    for claim in [make() for make in CLAIMS[n]] + UNSTORED.get(n, []):
        assert claim in text, f"N = {n}: expected {claim!r} on {PAGE.name}"
        text = text.replace(claim, "", 1)
    assert DECIMAL.findall(text) == []


def test_biases():
    for fold in report(10)["biases"]:
        assert np.argmax(fold["bias"]) == 9
    last = np.mean([fold["bias"] for fold in report(10)["biases"]], axis=0)[-2:]
    assert [f"{value:+.1f}" for value in last] == ["+0.3", "+0.8"]


def test_claims_of_the_best():
    lines = [line for line in section("P(best) on held-out questions").splitlines() if line.startswith("| ")]
    shown = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines[1:]]
    made = [
        [text for c in both for text in (f"{c['n']}", f"{c['claimed']:.3f}", f"{c['gold']:.3f}")]
        for both in zip(report(5)["claims"], report(10)["claims"], strict=True)
    ]
    assert shown == made
    overall = report(10)["claims"][0]
    assert f"by {overall['claimed'] - overall['gold']:.2f} at N = 10" in section("P(best) on held-out questions")


def script(name: str) -> Any:
    """Import a script of studies/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "studies" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n", CLAIMS)
def test_reports_are_those_of_the_rows(n):
    folder = ROOT / "studies" / "results" / f"moi{n}"
    rows = sorted(moi_report.rows_of(folder / "readings.jsonl"), key=lambda row: int(row["id"]))
    values = moi_report.collect(rows)
    assert set(values) == set(methods(n)) and len(rows) == report(n)["questions"]
    for name, measures in values.items():
        for measure, by_question in measures.items():
            stored = methods(n)[name][measure]["estimate"]
            assert np.mean(list(by_question.values())) == pytest.approx(stored, abs=1e-12), (name, measure)
    clusters = {row["id"]: row["cluster"] for row in rows}
    for other in ("qg-matched", "retriever"):
        found = moi_report.contrast(values["moi-calibrated"]["nats"], values[other]["nats"], clusters)
        assert found["difference"] == pytest.approx(contrast(n, other)["difference"], abs=1e-9), other
        assert found["p"] == pytest.approx(contrast(n, other)["p"], abs=1e-9)


def test_retrieval_of_the_questions():
    rows = list(moi_report.rows_of(ROOT / "studies" / "results" / "moi5" / "readings.jsonl"))
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert f"{len(rows)} questions of NQ-open" in page

    def share(most: int) -> str:
        return f"{sum(r['gold_rank'] is not None and r['gold_rank'] <= most for r in rows) / len(rows):.1%}"

    first, five, ten = (share(most).replace("%", " %") for most in (1, 5, 10))
    assert f"first for {first} of the questions, among the first 5 for {five} and among the first 10 for {ten}." in page


def numbers_of(value: Any, at: str = "") -> dict[str, float]:
    """Return the numbers in a JSON value, by where they are."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: number for key, item in items for place, number in numbers_of(item, f"{at}/{key}").items()}
    return {at: float(value)} if isinstance(value, (int, float)) else {}


@pytest.mark.long
def test_report_on_conflicts_is_that_of_the_rows(tmp_path):
    folder = ROOT / "studies" / "results" / "conflicts"
    study = script("conflicts")
    rows = {name: list(study.rows_of(study.log_of(folder, name))) for name in study.PARTS}
    weights = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    study.report(tmp_path, rows, weights)
    stored, made = (json.loads((at / "report.json").read_text(encoding="utf-8")) for at in (folder, tmp_path))
    assert numbers_of(made) == pytest.approx(numbers_of(stored), abs=1e-9)
    assert weights["all"] == WEIGHTS._asdict()


def test_parameters_of_conflicts_are_those_of_the_largest_likelihood():
    folder = ROOT / "studies" / "results" / "conflicts"
    study = script("conflicts")
    rows = [row for name in study.READERS for row in study.rows_of(study.log_of(folder, name))]
    loss = study.loss_of(rows)
    best = loss(np.array(WEIGHTS))
    for place in range(len(WEIGHTS)):
        for step in (-0.1, 0.1):
            moved = np.array(WEIGHTS)
            moved[place] += step
            assert loss(moved) > best


def test_report_on_sufficiency_is_that_of_the_rows(tmp_path):
    folder = ROOT / "studies" / "results" / "sufficiency"
    study = script("sufficiency")
    rows, emptied, answers = (
        {name: list(study.rows_of(study.log_of(folder, name, part))) for name in study.READERS}
        for part in ("", ".emptied", ".answers")
    )
    weights = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    study.report(tmp_path, rows, emptied, answers, weights)
    stored, made = (json.loads((at / "report.json").read_text(encoding="utf-8")) for at in (folder, tmp_path))
    assert numbers_of(made) == pytest.approx(numbers_of(stored), abs=1e-9)
    assert weights["all"] == SUFFICIENCY._asdict()
    loss = study.loss_of([row for own in rows.values() for row in own])
    for place, step in itertools.product(range(len(SUFFICIENCY)), (-0.05, 0.05)):
        moved = np.array(SUFFICIENCY)
        moved[place] += step
        assert loss(moved) > loss(np.array(SUFFICIENCY))


def test_attribution_is_that_of_the_rows():
    study = script("attribution")
    page = (ROOT / "docs" / "attribution.md").read_text(encoding="utf-8")
    columns = []
    for name in ("smollm2-135m", "gemma-3-270m"):
        rows = list(study.rows_of(ROOT / "studies" / "results" / "attribution" / f"{name}.jsonl"))
        lines = [line.split(" | ") for line in study.table(rows) if line.startswith("| ")][1:]
        columns.append({cells[0].strip("| "): cells[1] for cells in lines})
        assert f"In how many of {len(rows)} development questions" in page
    for measure, cell in columns[0].items():
        shown = measure if measure == "query likelihood" else f"`{measure}`"
        assert f"| {shown} | {cell} | {columns[1][measure]} |" in page


def test_rules_for_the_sign_of_the_papers_bias_are_those_of_the_report():
    stored = json.loads((ROOT / "studies" / "results" / "moi_signs.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "moi-baselines.md").read_text(encoding="utf-8")
    for sign in stored["moi5"]["signs"]:
        found = [stored[run]["signs"][sign]["against"]["retriever"]["nats"] for run in ("moi5", "moi10")]
        cells = (f"{each['estimate']:+.2f} [{each['low']:.2f}, {each['high']:.2f}]" for each in found)
        assert f'| `"{sign}"` | {" | ".join(cells)} |' in page


@pytest.mark.long
def test_report_on_orderings_is_that_of_the_rows(tmp_path):
    folder = ROOT / "studies" / "results" / "orderings"
    study = script("orderings_answers")
    rows = sorted(study.rows_of(folder / "rows.jsonl"), key=lambda row: int(row["id"]))
    study.report(tmp_path, rows)
    stored, made = (json.loads((at / "report.json").read_text(encoding="utf-8")) for at in (folder, tmp_path))
    assert numbers_of(made) == pytest.approx(numbers_of(stored), abs=1e-6)  # a logistic model converges to less


# Sections that quote a stored report: page, level and title, where in it, report, and figures that come from several of
# its own or from a paper.
QUOTED = [
    ("sure.md", "##", "Results", "", "sure_study.md", {"0.6", "28.4", "33.5"}),
    ("eor.md", "##", "Measured", "", "eor_study.md", set()),
    ("moi-baselines.md", "###", "Other analyses", "", "moi_analyses.md", {"0.22", "-14.84", "0.90", "-15.53"}),
    ("conflicts.md", "##", "Measured", "", "conflicts/report.md", set()),
    ("conflicts.md", "##", "Answers over orderings", "`fr.statistics`", "orderings/report.md", set()),
    ("noise.md", "##", "Measured", "These results differ", "noise_study.md", set()),  # the table has its own p values
]


@pytest.mark.parametrize(("page", "level", "title", "begin", "name", "others"), QUOTED, ids=[row[0] for row in QUOTED])
def test_every_figure_is_in_the_report(page, level, title, begin, name, others):
    text = section(title, ROOT / "docs" / page, level)
    stored = [abs(float(x)) for x in DECIMAL.findall((ROOT / "studies" / "results" / name).read_text(encoding="utf-8"))]
    quoted = [figure for figure in DECIMAL.findall(text[text.index(begin) :]) if figure not in others]
    for figure in quoted:
        near = 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9
        value = abs(float(figure))
        assert any(min(abs(x - value), abs(100 * x - value)) <= near for x in stored), f"{page}: {figure} not in {name}"
    assert len(quoted) >= 2


def test_what_the_page_on_moi_says_of_the_study():
    text = (ROOT / "docs" / "moi.md").read_text(encoding="utf-8")
    gains = [f"{contrast(n, 'retriever')['difference']['estimate']:.1f}" for n in (5, 10)]
    assert f"[{gains[0]} nats at N = 5]" in text and f"[{gains[1]} at N = 10]" in text
    assert f"more often at N = 5 (by {said(contrast(5, 'qg-matched', 'contained'), 3, -1)})" in text
