"""Rows of the MoI study: numbers only, without the data's text, so that they can be stored with the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fastreader import Example, PermutationScores
from fastreader.core.tree import TreeStats
from fastreader.moi.analyses.outcomes import MEASURES, Outcome
from fastreader.moi.calibration.probe import gold_of
from fastreader.statistics.measures.answers import contained, exact_match, f1

Row = dict[str, Any]
RATES = {"em": exact_match, "contained": contained, "f1": f1}
_NEEDED = ("permutations", "question_tokens", "passages_tokens", "design", "template_digest", "reader", "seconds")
_NATS = ("question_logprobs", "passages_logprobs", "query_logprobs")
_DIGITS = 4  # of nats; bfloat16 products are off by more


def observation(scores: PermutationScores) -> Row:
    """Return the row of a question's scored orderings. `scores_of` restores them, without texts and candidates."""
    values = scores.to_dict()
    row = {name: values[name] for name in _NEEDED}
    return row | {name: rounded(values[name]) for name in _NATS} | {"stats": asdict(scores.stats)}


def scores_of(row: Row) -> PermutationScores:
    """Return the scores in an observation's row."""
    count = len(row["permutations"])
    empty: list[list[float]] = [[]] * count
    return PermutationScores.from_dict(
        {**row, "question": "", "candidates": [], "candidate_tokens": [], "logprobs": empty, "greedy": empty}
    )


def rounded(values: Any) -> Any:
    """Round nats, single or in lists, to the digits that the arithmetic supports."""
    return [rounded(v) for v in values] if isinstance(values, list) else round(float(values), _DIGITS)


def mean_rates(texts: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """Return mean EM, containment and F1 of answers against the right ones."""
    return {name: float(np.mean([rate(text, right) for text in texts])) for name, rate in RATES.items()}


def method_row(found: Row) -> Row:
    """Return a method's order, tokens and error, with P(best) and the single values of its details."""
    row = {name: found[name] for name in ("order", "orders", "computed", "given", "error") if name in found}
    details = {k: v for k, v in found.get("details", {}).items() if isinstance(v, (bool, int, float))}
    if "p_best" in found.get("details", {}):
        details["p_best"] = rounded(found["details"]["p_best"])
    return {**row, "details": details} if details else row


def read_once(orders: Sequence[Sequence[int]], results: Sequence[Outcome]) -> Row:
    """Return the outcome of each order, by its passages. Orders that several methods share appear once."""
    return {
        key(order): {name: rounded(getattr(result, name)) for name in MEASURES}
        for order, result in zip(orders, results, strict=True)
    }


def outcome_of(row: Row, method: str) -> dict[str, float] | None:
    """Return the outcome of a method's order, or None if it has no order for this question.

    A method with several orders has the log of the right answers' mean probability over them, and no text.
    """
    own = row["methods"].get(method, {})
    if orders := own.get("orders"):
        nats = [row["outcomes"][key(order)]["nats"] for order in orders]
        return {"nats": float(np.logaddexp.reduce(nats) - np.log(len(nats)))}
    order = own.get("order")
    found: dict[str, float] | None = None if order is None else row["outcomes"][key(order)]
    return found


def key(order: Sequence[int]) -> str:
    """Return an order as text."""
    return " ".join(map(str, order))


def tokens(stats: TreeStats) -> Row:
    """Return the counts of a call, under the rows' short names."""
    return {
        "sequences": stats.sequences,
        "given": stats.total_tokens,
        "computed": stats.computed_tokens,
        "scored": stats.scored,
        "reused": stats.cached_tokens,
    }


def cluster_of(index: int, example: Example) -> str:
    """Name the gold passage, wherever it was retrieved. A question without one is a separate cluster."""
    gold = gold_of(example.passages, ("is_gold",))
    return f"question {index}" if gold is None else f"passage {example.passages[gold].id}"


def gold_rank(example: Example) -> int | None:
    """Return the gold passage's place in the whole retrieved list, from 1."""
    found = gold_of(example.passages, ("is_gold",))
    return None if found is None else found + 1


def folds_of(clusters: list[str], folds: int, seed: int) -> list[int]:
    """Draw a fold for each question: clusters stay whole, and folds differ by at most one cluster."""
    distinct = list(dict.fromkeys(clusters))
    order = np.random.default_rng(seed).permutation(len(distinct)).tolist()
    fold = {distinct[c]: place % folds for place, c in enumerate(order)}
    return [fold[c] for c in clusters]
