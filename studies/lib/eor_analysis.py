"""The analysis of studies/eor_study.py: every condition by every measure, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastreader import Reader
from fastreader.data.result_log import iter_results
from fastreader.eor import Answers, Voter, correctness, measures
from fastreader.eor.similarity import resolve
from fastreader.errors import InputError
from fastreader.statistics import Interval, bootstrap, mcnemar, paired_bootstrap

REFERENCE = "best single, chosen on the other half"
KINDS = ("orders", "samples")


def control_file(output: Path) -> Path:
    return output.with_suffix(".control.jsonl")


def load_rows(path: Path) -> list[Answers]:
    return sorted((Answers.from_dict(row) for row in iter_results(path)), key=lambda row: int(row.id or 0))


def half(count: int, seed: int) -> np.ndarray:
    """Return whether each question is in the first half of a drawn order: bool [count]."""
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.default_rng(seed + 1).permutation(count)[: count // 2]] = True
    return chosen


def at_floor(rows: Sequence[Answers], measure: str) -> bool:
    """Return whether no answer is right, so that the measure cannot distinguish conditions."""
    return not correctness(rows, measure).any()


def best_of_halves(rows: Sequence[Answers], measure: str, first: np.ndarray) -> list[str]:
    """Return the best single retriever on each half. By containment if no answer is right by the measure."""
    correct = correctness(rows, "contained" if at_floor(rows, measure) else measure)
    return [rows[0].retrievers[int(correct[part].mean(axis=0).argmax())] for part in (first, ~first)]


def analyse(
    output: Path, names: Sequence[str], by: Sequence[str], *, starts: int = 16, reader: Reader | None = None
) -> dict[str, Any]:
    """Analyse the answers in `output` and the answers of its control.

    Raises:
        InputError: if an answer of the control is missing.
    """
    rows = load_rows(output)
    made_with = next(iter(iter_results(output)))["settings"]
    seed = made_with["seed"]
    first = half(len(rows), seed)
    similarities = [resolve(name, reader=reader) for name in names]  # once, so that all voters share its cache
    floors = {measure: at_floor(rows, measure) for measure in by}
    primary = next((measure for measure in by if not floors[measure]), "contained")
    found: dict[str, Any] = {
        "settings": made_with,
        "questions": len(rows),
        "halves": [int(first.sum()), int((~first).sum())],
        "similarities": [s.name for s in similarities],
        "failures": {name: sum(name in row.failures for row in rows) for name in rows[0].retrievers},
        "words": float(np.mean([len(text.split()) for row in rows for text in row.texts if text is not None])),
        "primary": primary,
        "measures": {},
    }
    for measure in sorted(by, key=lambda name: name != primary):
        voters = Fits(similarities, measure, first, starts, seed)
        others = controls(control_file(output), rows, best_of_halves(rows, measure, first))
        found["measures"][measure] = one_measure(measure, rows, others, voters) | {"floor": floors[measure]}
    found["errors"] = error_analysis(rows)
    return found


def controls(path: Path, rows: Sequence[Answers], best: Sequence[str]) -> dict[str, list[list[Answers]]]:
    """Return by kind, for each half's choice of retriever, the control's answers to all questions."""
    by_key = {row["id"]: row for row in iter_results(path)} if path.exists() else {}
    wanted = [f"{name}/{row.id}" for name in dict.fromkeys(best) for row in rows]
    if missing := [key for key in wanted if key not in by_key]:
        raise InputError(
            f"{path}: {len(missing)} of {len(wanted)} answers of the control are missing, the first {missing[0]}; "
            "run with DATA and POOL to add them"
        )
    return {
        kind: [
            [
                Answers(r.question, [f"{kind} {i}" for i in range(len(texts))], texts, right=r.right, id=r.id)
                for r in rows
                for texts in [by_key[f"{name}/{r.id}"][kind]]
            ]
            for name in best
        ]
        for kind in KINDS
    }


class Fits:
    """Voters for each half, fitted on the other."""

    def __init__(self, similarities: Sequence[Any], measure: str, first: np.ndarray, starts: int, seed: int) -> None:
        self.similarities, self.measure, self.first = similarities, measure, first
        self.starts, self.seed = starts, seed

    def unweighted(self, sets: Sequence[Sequence[Answers]]) -> np.ndarray:
        """Return correctness with equal weights. Sets[h] are the answers that belong to half h's choice."""
        plain = [won(Voter(self.similarities), rows, correctness(rows, self.measure)) for rows in sets]
        return np.where(self.first, plain[1], plain[0])

    def fitted(self, sets: Sequence[Sequence[Answers]]) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Return correctness with weights fitted on the other half, and those weights."""
        value = np.zeros(len(self.first))
        learned = []
        for part, rows in zip((self.first, ~self.first), sets, strict=True):
            correct = correctness(rows, self.measure)
            inside = [row for row, of_part in zip(rows, part, strict=True) if of_part]
            voter = Voter(self.similarities, starts=self.starts, seed=self.seed).fit(inside, correct[part])
            value[~part] = won(voter, rows, correct)[~part]
            assert voter.fit_report_ is not None
            learned.append(
                {
                    "retrievers": dict(zip(rows[0].retrievers, voter.retriever_weights_.tolist(), strict=True)),
                    "similarities": voter.similarity_weights_.tolist(),
                    "report": voter.fit_report_.to_dict(),
                }
            )
        return value, learned


def won(voter: Voter, rows: Sequence[Answers], correct: np.ndarray) -> np.ndarray:
    places = voter.winners(rows)
    return np.where(places >= 0, correct[np.arange(len(rows)), places], 0.0)


def one_measure(
    measure: str, rows: Sequence[Answers], others: dict[str, list[list[Answers]]], voters: Fits
) -> dict[str, Any]:
    """Evaluate all conditions by one measure of correctness. No value is of a question that was fitted on."""
    names, first = rows[0].retrievers, voters.first
    correct = correctness(rows, measure)
    best = best_of_halves(rows, measure, first)
    chosen = [names.index(name) for name in best]
    every = np.arange(len(rows))
    # For each question, the retriever whose answer the condition gives; -1 if a vote decides.
    taken = {name: np.full(len(rows), m) for m, name in enumerate(names)}
    taken[REFERENCE] = np.where(first, chosen[1], chosen[0])
    taken["best single, oracle"] = np.where(first, chosen[0], chosen[1])
    values = {name: correct[every, own] for name, own in taken.items()}
    weights: dict[str, Any] = {}
    values["EoR unweighted"] = voters.unweighted([rows, rows])
    values["EoR fitted"], weights["EoR"] = voters.fitted([rows, rows])
    for kind, sets in others.items():
        values[f"control, {kind}, unweighted"] = voters.unweighted(sets)
        values[f"control, {kind}, fitted"], weights[f"control, {kind}"] = voters.fitted(sets)
    values["upper bound"] = correct.max(axis=1)

    conditions = {}
    for name, value in values.items():
        own = taken.get(name, np.full(len(rows), -1))
        row: dict[str, Any] = {"accuracy": bootstrap(value).to_dict(), "mrlr": lose_ratio(correct, value, own)}
        if name != REFERENCE:
            row["less best single"] = paired_bootstrap(value, values[REFERENCE]).to_dict()
            row["mcnemar p"] = mcnemar(value, values[REFERENCE])
        conditions[name] = row
    contrasts = {
        f"EoR {state} less control, {kind}, {state}": paired_bootstrap(
            values[f"EoR {state}"], values[f"control, {kind}, {state}"]
        ).to_dict()
        for kind in others
        for state in ("unweighted", "fitted")
    }
    return {
        "conditions": conditions,
        "contrasts": contrasts,
        "chosen": dict(zip(("by the first half", "by the second half"), best, strict=True)),
        "weights": weights,
        "rwr": plain(measures.rwr(correct)),
        "mrwr": plain(measures.mrwr(correct)),
        "mrlr": plain(measures.mrlr(correct)),
        "upper bounds": {
            k: {"least": float(v.min()), "mean": float(v.mean()), "most": float(v.max())}
            for k, v in measures.upper_bound(correct).items()
        },
    }


def lose_ratio(
    correct: np.ndarray, value: np.ndarray, own: np.ndarray, *, resamples: int = 2000, seed: int = 0
) -> dict[str, float | None]:
    """Return MRLR (Eq. 3) of a condition against the retrievers, with a percentile bootstrap interval over questions.

    A condition that gives a retriever's own answer (the best single one) is not compared with that retriever.

    Args:
        correct: 0/1 [Q, M], correctness of the retrievers.
        value: 0/1 [Q], correctness of the condition.
        own: int [Q], the retriever whose answer the condition gave; -1 for none.
        resamples, seed: of the interval. It ignores draws in which nothing is defined.
    """
    missed = (own[:, None] != np.arange(correct.shape[1])) * (1.0 - value)[:, None]
    drawn = np.random.default_rng(seed).multinomial(len(value), np.full(len(value), 1 / len(value)), size=resamples)
    counts = np.vstack([np.ones(len(value)), drawn])
    below = counts @ missed
    ratio = np.divide(counts @ (missed * correct), below, out=np.zeros_like(below), where=below > 0)
    defined = (below > 0).sum(axis=1)
    means = np.divide(ratio.sum(axis=1), defined, out=np.full(len(counts), np.nan), where=defined > 0)
    low, high = np.quantile(inside, (0.025, 0.975)) if len(inside := means[1:][defined[1:] > 0]) else (np.nan, np.nan)
    return Interval(float(means[0]), float(low), float(high)).to_dict()


def error_analysis(rows: Sequence[Answers]) -> dict[str, Any]:
    """Return rates of the four errors and the residual of Eq. 4, with and without the paper's filter."""
    every = measures.errors(rows, correctness(rows, "contained"))
    out: dict[str, Any] = {"retrievers": rows[0].retrievers, "kept": int(every.kept.sum())}
    for name, found in (("all", every), ("filtered", every.filtered())):
        parts = measures.decomposition(found)
        out[name] = {
            "rates": {error: plain(rate) for error, rate in found.rates().items()},
            "failure": plain(parts.failure),
            "explained": plain(parts.explained),
            "residual": plain(parts.residual),
            "right_outside": parts.right_outside.tolist(),
            "right_without": parts.right_without.tolist(),
            "rwr": {error: plain(table) for error, table in measures.error_rwr(found).items()},
        }
    return out


def plain(values: np.ndarray) -> list[Any]:
    """Return nested lists, with None for undefined values."""
    rows: list[Any] = np.where(np.isnan(values), None, values.astype(object)).tolist()
    return rows
