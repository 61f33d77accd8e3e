"""How an answer came about, for the terminal: candidates, their summaries, the vote, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from fastreader.cli.screen import Text
from fastreader.reader.programs.requests import StageCost
from fastreader.sure.templates import LETTERS
from fastreader.sure.types import MethodResult, Result, SureResult

_FORMS = {
    "letters": 'read from the form "(a) xx, (b) yy"',
    "list": "read from a list, a line each",
    "commas": "no letters; split at commas",
    "whole": "no letters; the whole reply",
    "none": "none in the reply",
}


def explain(result: Result) -> RenderableType:
    """Everything a result says, readable: question and answer first, then each stage, notes, and the cost."""
    if isinstance(result, SureResult):
        parts = [_heading(result), *_candidates(result), *_summaries(result)]
    else:
        parts = [_heading(result), *_details(result)]
    notes = [Text(f"Note: {note}", style="yellow") for note in result.notes]
    return Group(*parts, *notes, costs_table(result.costs))


def _heading(result: Result) -> Text:
    heading = Text("Question: ").append(result.question, style="bold")
    heading.append("\nAnswer:   ").append(result.answer or "(none)", style="bold green" if result.answer else "yellow")
    return heading.append(f"\nMethod:   {result.method}, {result.num_passages} passages, {_readers(result.readers)}")


def _readers(readers: Mapping[str, Mapping[str, str]]) -> str:
    names = {stage: facts.get("name", "?") for stage, facts in readers.items()}
    others = [f"{stage} by {name}" for stage, name in names.items() if stage != "all"]
    return ", ".join([f"read by {names.get('all', '?')}", *others])


def _candidates(result: SureResult) -> list[RenderableType]:
    """Show the vote, with a row for each candidate."""
    parts: list[RenderableType] = [_stage("Candidates", f"{_FORMS[result.found.form]}: {result.found.reply.strip()!r}")]
    if not result.candidates:
        return parts
    table = Table(header_style="bold")
    table.add_column("")
    table.add_column("candidate", overflow="fold")
    if result.validity is not None:
        table.add_column("supported (v)", justify="right")
    if result.ranking is not None:
        table.add_column("preferred (r)", justify="right")
    table.add_column("score", justify="right")
    for i, candidate in enumerate(result.candidates):
        row = [LETTERS[i], candidate]
        if result.validity is not None:
            row.append(f"{result.validity[i]:g}{_share(result.validity_probability[i])}")
        if result.ranking is not None:
            row.append(f"{result.ranking[i]:g}")
        row.append(f"{result.scores[i]:g}")
        style = "bold green" if i == result.best else ""
        table.add_row(*(Text(cell, style=style) for cell in row))
    return [*parts, Padding(table, (0, 0, 0, 2)), *_pairs(result)]


def _pairs(result: SureResult) -> list[RenderableType]:
    """Each pair in both orders, in words."""
    lines: list[RenderableType] = []
    for i in range(len(result.candidates)):
        for j in range(i + 1, len(result.candidates)):
            value = result.pairwise[i][j]
            if value is None:
                continue
            winner = {1.0: f"{LETTERS[i]} in both orders", 0.0: f"{LETTERS[j]} in both orders"}
            verdict = winner.get(value, "no verdict")
            orders = [_order(result, i, j), _order(result, j, i)]
            lines.append(Text(f"  {LETTERS[i]} against {LETTERS[j]}: {verdict} ({'; '.join(orders)})"))
    return lines


def _order(result: SureResult, first: int, second: int) -> str:
    """Name the preferred summary when `first` came first."""
    replied = result.replied[first][second]
    preferred = "neither" if replied is None else LETTERS[first if replied else second]
    share = result.preference[first][second]
    certainty = "" if share is None else f" {max(share, 1 - share):.0%}"
    return f"{LETTERS[first]} first: {preferred}{certainty}"


def _summaries(result: SureResult) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for i, (candidate, text, finish) in enumerate(
        zip(result.candidates, result.summaries, result.finishes, strict=True)
    ):
        cut = ", cut at its longest" if finish == "length" else ""
        best = ", the rationale" if i == result.best else ""
        parts.append(_stage(f"Summary for {LETTERS[i]} {candidate}", f"{cut}{best}".removeprefix(", ")))
        parts.append(Padding(Text(text or "(empty)", style="" if text else "yellow"), (0, 0, 0, 2)))
    return parts


def _details(result: MethodResult) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for name, value in result.details.items():
        parts.append(_stage(name.replace("_", " ").capitalize()))
        parts.append(Padding(Text(_shown(value)), (0, 0, 0, 2)))
    return parts


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "\n".join(f"{i}. {_shown(v)}" for i, v in enumerate(value, 1)) or "(none)"
    return f"{value:.4g}" if isinstance(value, float) else str(value).strip() or "(empty)"


def _stage(name: str, rest: str = "") -> Text:
    line = Text(name, style="bold")
    return line.append(f"  {rest}", style="not bold dim") if rest else line


def _share(probability: float | None) -> str:
    return "" if probability is None else f" ({probability:.0%} True)"


def costs_table(costs: Mapping[str, StageCost]) -> Table:
    """Show calls, tokens and seconds of each stage, and their sum."""
    table = Table(header_style="bold")
    for name in ("stage", "calls", "tokens given", "computed", "saved", "written", "seconds"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    total = sum(costs.values(), StageCost(0, 0, 0, 0, 0.0))
    for stage, cost in [*costs.items(), ("all", total)]:
        if stage == "all":
            table.add_section()
        table.add_row(stage, *_cells(cost))
    return table


def _cells(cost: StageCost) -> list[str]:
    counts = ["?" if count is None else f"{count:,}" for count in (cost.total_tokens, cost.computed_tokens)]
    saved = "?"
    if cost.total_tokens and cost.computed_tokens is not None:
        saved = f"{1 - cost.computed_tokens / cost.total_tokens:.0%}"
    return [f"{cost.calls}", *counts, saved, f"{cost.new_tokens}", f"{cost.seconds:.1f}"]
