"""The commands whose files must survive: their arguments, and what their files must hold in the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.forks import Forked

from fastreader.data.result_log import iter_results

NAMES = ("score", "moi", "eor", "sure", "study")


@dataclass(frozen=True)
class Run:
    """One command over the questions.

    Attributes:
        arguments: of the command, for an output.
        file: the file of results, for an output.
        rows: number of results of a whole run.
    """

    arguments: Callable[[Path], list]
    file: Callable[[Path], Path]
    rows: int

    def results(self, output: Path) -> dict[str, Any]:
        """The results by id, without times. Fails if an id comes twice."""
        rows = list(iter_results(self.file(output)))
        found = {row["id"]: _timeless(row) for row in rows}
        assert len(found) == len(rows), "a result came twice"
        return found


def start(run: Run, output: Path, *options: str, within: Callable[[], object] | None = None) -> Forked:
    """Start a run in a forked process. `within` is called there first."""
    return Forked((*run.arguments(output), *options), within)


def _timeless(value: Any) -> Any:
    """A result without what two runs of the same command may differ in: seconds, and tokens that a kill repeats."""
    if isinstance(value, dict):
        left_out = ("seconds", "costs", "cost", "stats", "tokens", "device", "forward", "check")
        return {k: _timeless(v) for k, v in value.items() if k not in left_out}
    if isinstance(value, list):
        return [_timeless(v) for v in value]
    return round(value, 3) if isinstance(value, float) else value


def runs(model: str, questions: Path) -> dict[str, Run]:
    """The runs by name."""
    passages = questions.with_name("passages.jsonl")
    passages.write_text("".join(json.dumps({"id": str(i), "text": f"Number {i} is blue."}) + "\n" for i in range(12)))
    count = len(questions.read_text().splitlines())

    def plain(*command: Any) -> Run:
        return Run(lambda out: [*command, "-m", model, "-o", out], lambda out: out, count)

    methods = ["--method", "base", "--method", "moi"]
    voting = ["--source", f"W={passages}", "-r", "W@1", "-r", "ReFree", "--max-new-tokens", 4, "--batch-size", 3]
    sure = ["--method", "sure", "--max-summary-tokens", 6, "--batch-size", 3]
    study = ["study", "--data", questions, *methods, "-m", model, "--batch-size", 3]
    return {
        "score": plain("score", questions, "--max-batch-tokens", 300),
        "moi": plain("moi", questions),
        "eor": plain("eor", questions, *voting),
        "sure": plain("ask", questions, *sure),
        "study": Run(lambda out: [*study, "-o", out], lambda out: out / "results.jsonl", 2 * count),
    }
