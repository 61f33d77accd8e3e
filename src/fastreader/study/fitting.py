"""Weights of an ensemble, learned from a study's own questions, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.data import Example
from fastreader.eor.measures import correctness
from fastreader.eor.voter import Voter
from fastreader.errors import InputError
from fastreader.study.config import Study
from fastreader.study.folder import VOTER, RunFolder
from fastreader.study.methods.eor import EorMethod, answers_of
from fastreader.study.registry import make


def fit_voters(study: Study, run: RunFolder, rows: Sequence[dict[str, Any]], examples: Sequence[Example]) -> None:
    """Fit the voter of every EoR method on its answers and write them to voter.json, by reader and method."""
    by_id = {example.id: example for example in examples}
    fitted: dict[str, dict[str, Any]] = {}
    for config in study.methods:
        method = make(config, study)
        if not isinstance(method, EorMethod):
            continue
        for reader in study.readers:
            answers = [
                answers_of(row["trace"], by_id[row["question_id"]])
                for row in rows
                if row["method"] == config.label and row["reader"] == reader and "ensemble" in row["trace"]
            ]
            answers = [a for a in answers if a.right]
            if not answers:
                continue
            found: dict[str, Any] = {}
            try:
                found["voter"] = Voter(**method.voter).fit(answers, correctness(answers, study.metric)).to_dict()
            except InputError as error:
                found["error"] = str(error)
            fitted.setdefault(reader, {})[config.label] = {**found, "questions": len(answers)}
    run.write_json(VOTER, fitted)
