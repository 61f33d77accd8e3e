"""Weights of an ensemble, learned from a study's own questions, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.data import Example
from fastreader.eor.measures import correctness
from fastreader.eor.voter import Voter
from fastreader.errors import InputError
from fastreader.study.config import Study
from fastreader.study.folder import VOTER, RunFolder
from fastreader.study.methods.eor import Eor, answers_of
from fastreader.study.registry import make


def fit_voters(study: Study, run: RunFolder, rows: Sequence[dict[str, Any]], examples: Sequence[Example]) -> None:
    """Fit every EoR method's voter on its answers and keep it in voter.json, by reader and method."""
    by_id = {example.id: example for example in examples}
    fitted: dict[str, dict[str, Any]] = {}
    for config in study.methods:
        method = make(config, study)
        if not isinstance(method, Eor):
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
            try:
                voter = Voter(**method.voter).fit(answers, correctness(answers, study.measure))
            except InputError as error:
                fitted.setdefault(reader, {})[config.label] = {"error": str(error), "questions": len(answers)}
                continue
            values = {"voter": voter.to_dict(), "questions": len(answers)}
            fitted.setdefault(reader, {})[config.label] = values
    run.write_json(VOTER, fitted)
