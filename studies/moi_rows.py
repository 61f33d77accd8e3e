"""Rows of the MoI study: numbers alone, none of the data's text, so that they can be kept with the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fastreader import PermutationScores
from fastreader.moi.outcomes import MEASURES, Outcome
from fastreader.statistics.answers import contained, exact_match, f1

Row = dict[str, Any]
RATES = {"em": exact_match, "contained": contained, "f1": f1}
_NEEDED = ("permutations", "question_tokens", "passages_tokens", "design", "template_digest", "reader", "seconds")
_NATS = ("question_logprobs", "passages_logprobs", "query_logprobs")
_DIGITS = 4  # of nats; bfloat16 products are off by more


def observation(scores: PermutationScores) -> Row:
    """The scores of a question's orderings; `scores_of` gives them back, without texts and candidates."""
    values = scores.to_dict()
    row = {name: values[name] for name in _NEEDED}
    return row | {name: rounded(values[name]) for name in _NATS} | {"stats": asdict(scores.stats)}


def scores_of(row: Row) -> PermutationScores:
    """The scores in an observation's row."""
    count = len(row["permutations"])
    empty: list[list[float]] = [[]] * count
    return PermutationScores.from_dict(
        {**row, "question": "", "candidates": [], "candidate_tokens": [], "logprobs": empty, "greedy": empty}
    )


def rounded(values: Any) -> Any:
    """Nats, alone or in lists, to as many digits as say something."""
    return [rounded(v) for v in values] if isinstance(values, list) else round(float(values), _DIGITS)


def mean_rates(texts: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """EM, containment and F1 of answers, each against the right ones; means."""
    return {name: float(np.mean([rate(text, right) for text in texts])) for name, rate in RATES.items()}


def method_row(found: Row) -> Row:
    """Order, tokens and error of a method; of its details P(best) and single values."""
    row = {name: found[name] for name in ("order", "computed", "given", "error") if name in found}
    details = {k: v for k, v in found.get("details", {}).items() if isinstance(v, (bool, int, float))}
    if "p_best" in found.get("details", {}):
        details["p_best"] = rounded(found["details"]["p_best"])
    return {**row, "details": details} if details else row


def read_once(orders: Sequence[Sequence[int]], results: Sequence[Outcome]) -> Row:
    """What reading each order gave, by its passages; orders that several methods share are there once."""
    return {
        key(order): {name: rounded(getattr(result, name)) for name in MEASURES}
        for order, result in zip(orders, results, strict=True)
    }


def outcome_of(row: Row, method: str) -> dict[str, float] | None:
    """What reading a method's order gave; None where it has none for this question."""
    order = row["methods"].get(method, {}).get("order")
    found: dict[str, float] | None = None if order is None else row["outcomes"][key(order)]
    return found


def key(order: Sequence[int]) -> str:
    """An order as text."""
    return " ".join(map(str, order))
