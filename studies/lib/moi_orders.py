"""The orders of one question by every method of the MoI study, with the tokens spent on finding each.

Methods that read the question's prompts share a session (`Reader.session`); their tokens are those that each method
would compute by itself under the same budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from lib.moi_rows import Row

from fastreader import Example, PermutationScores, Template, permutation_cost, score_permutations
from fastreader.core.tree import TreeStats
from fastreader.errors import InputError
from fastreader.moi import PositionBias, Utilities, debias, observe, rerank
from fastreader.moi.baselines import METHODS, Ordering, score_matched
from fastreader.moi.baselines.ordering import by_score
from fastreader.moi.baselines.placed import outside_bias
from fastreader.moi.quantities.designs import prefixes
from fastreader.reader.session import Session

# "moi-paper" is "moi-joint" below, which shares the scores of the other methods here.
BASELINES = [name for name, method in METHODS.items() if "model" not in method.needs and name != "moi-paper"]
MOI = [
    "moi-calibrated",  # the package's default: N cyclic orderings, matched
    "moi-calibrated-descending",
    "moi-calibrated-3n",  # the paper's 3N random orderings, matched
    "moi-joint",  # the paper: joint likelihood, joint solve, descending
    "moi-joint-matched",
    "moi-joint-question",  # the same on the question's likelihood
    "moi-joint-question-matched",
    "moi-prefixes",  # the joint solve of a design that identifies it
]
POLARITY = ["moi-calibrated", "qg-matched", "moi-joint", "rankgpt"]  # also read in reverse
REVERSED = " (reversed)"


def spent(stats: TreeStats) -> Row:
    """Return the tokens of a method, under the rows' short names."""
    return {"computed": stats.computed_tokens, "given": stats.total_tokens}


def by_itself(stats: TreeStats) -> TreeStats:
    """Return the counts of a call without its session, split into the same passes."""
    return replace(stats, computed_tokens=stats.computed_tokens + stats.cached_tokens, cached_tokens=0)


def all_orders(
    session: Session,
    template: Template,
    example: Example,
    scores: PermutationScores,
    bias: PositionBias,
    methods: list[str],
    seed: int,
    options: dict[str, Any],
) -> dict[str, Row]:
    """Return each method's order, tokens and details, or the error that prevents it.

    Args:
        session: shared by the methods.
        template: texts of the prompts.
        example: the question with N passages.
        scores: its 3N random orderings, with scores of the passages and of each passage alone.
        bias: measured on other questions.
        methods: names from BASELINES and MOI.
        seed: seed of this question.
        options: further settings of baselines, by name of the argument (`model`, `count`, `max_batch_tokens`, ...).
    """
    question = _Question(session, template, replace(example, candidates=[]), scores, bias, seed, options)
    rows: dict[str, Row] = {}
    for name in methods:
        try:
            rows[name] = question.baseline(name) if name in METHODS else question.moi(name)
        except InputError as error:
            rows[name] = {"error": str(error)}
    for name in POLARITY:
        if "order" in rows.get(name, {}):
            rows[name + REVERSED] = {**rows[name], "order": rows[name]["order"][::-1]}
    return rows


@dataclass
class _Question:
    """All methods on one question. Results that several of them need are computed once."""

    session: Session
    template: Template
    example: Example
    scores: PermutationScores
    bias: PositionBias
    seed: int
    options: dict[str, Any]
    cyclic: Any = None
    found: dict[str, Ordering] = field(default_factory=dict)

    def baseline(self, name: str) -> Row:
        """Return a baseline's order. "-matched" ones place the scores of their plain one, which runs once."""
        plain = name.removesuffix("-matched")
        if plain == name or plain not in METHODS:
            found = self.ordering(name)
        else:
            outside_bias(self.bias, len(self.example.passages))  # before the work
            found = self.ordering(plain)
            if found.scores is None:
                raise InputError(f"{plain}: has no scores to place")
            found = replace(found, order=score_matched(found.scores, self.bias))
        return {"order": found.order, **spent(found.stats), "details": dict(found.details)}

    def ordering(self, name: str) -> Ordering:
        if name not in self.found:
            self.found[name] = self.query_likelihood() if name == "qg" else self.run(name)
        return self.found[name]

    def run(self, name: str) -> Ordering:
        settings = {"bias": self.bias, "seed": self.seed, "template": self.template, **self.options}
        found = METHODS[name](self.session, self.example.question, self.example.passages, **settings)
        # It opens another session, whose savings between the steps belong to the method.
        return found if name == "bayes-saliency-plus" else replace(found, stats=by_itself(found.stats))

    def query_likelihood(self) -> Ordering:
        """Order as `baselines.qg`, from the available scores, with the tokens that it takes by itself."""
        if self.scores.query_logprobs is None:
            raise InputError("qg: the available scores lack each passage by itself")
        alone = np.arange(len(self.example.passages))[:, None]
        return by_score("qg", self.scores.query_logprobs, self.cost(alone))

    def cost(self, permutations: Any, **more: Any) -> TreeStats:
        return permutation_cost(
            self.session,
            self.example,
            permutations=permutations,
            template=self.template,
            question_only=True,
            max_batch_tokens=self.options.get("max_batch_tokens"),
            **more,
        )

    def moi(self, name: str) -> Row:
        make: dict[str, Callable[[], Row]] = {
            "moi-calibrated": lambda: self.calibrated("matched"),
            "moi-calibrated-descending": lambda: self.calibrated("descending"),
            "moi-calibrated-3n": lambda: self.random(debias(self.scores, self.bias), "matched", alone=True),
            "moi-joint": lambda: self.joint("joint", "descending"),
            "moi-joint-matched": lambda: self.joint("joint", "matched"),
            "moi-joint-question": lambda: self.joint("question", "descending"),
            "moi-joint-question-matched": lambda: self.joint("question", "matched"),
            "moi-prefixes": self.prefixes,
        }
        return make[name]()

    def calibrated(self, order: str) -> Row:
        """Order as `moi.rerank` with a calibration."""
        if self.cyclic is None:
            self.cyclic = rerank(
                self.session,
                self.example,
                bias=self.bias,
                template=self.template,
                seed=self.seed,
                max_passages=10**6,
                max_batch_tokens=self.options.get("max_batch_tokens"),
            )
        assert self.cyclic.utilities is not None
        cost = self.cyclic.cost
        row = _row(self.cyclic.utilities, order)
        return {**row, "computed": cost.computed_tokens + cost.cached_tokens, "given": cost.total_tokens}

    def joint(self, kind: str, order: str) -> Row:
        """Solve the 3N random orderings jointly, as the paper does."""
        observed = observe(replace(self.scores, query_logprobs=None), kind, passages=len(self.example.passages))
        return self.random(debias(observed, method="joint", seed=self.seed), order, passages=kind == "joint")

    def random(self, utilities: Utilities, order: str, *, alone: bool = False, passages: bool = False) -> Row:
        """Order by the utilities, at the cost of the 3N orderings as they were scored."""
        cost = self.cost(self.scores.permutations, query_likelihood=alone, score_passages=passages)
        return {**_row(utilities, order), **spent(cost)}

    def prefixes(self) -> Row:
        """Order by the joint solve of random prefixes, descending, which needs no calibration."""
        n = len(self.example.passages)
        scored = score_permutations(
            self.session,
            self.example,
            permutations=prefixes(n, seed=self.seed),
            template=self.template,
            question_only=True,
            max_batch_tokens=self.options.get("max_batch_tokens"),
        )
        row = _row(debias(observe(scored, passages=n), method="joint", seed=self.seed), "descending")
        return {**row, **spent(by_itself(scored.stats))}


def _row(utilities: Utilities, order: str) -> Row:
    details = {
        "utility": utilities.utility.tolist(),
        **({} if utilities.p_best is None else {"p_best": utilities.p_best.tolist()}),
        "identified": utilities.identified,
        "flags": list(utilities.flags),
    }
    return {"order": utilities.order(order).tolist(), "details": details}
