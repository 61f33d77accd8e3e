"""The orders of one question by every method of the MoI study, with the tokens that finding each took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastreader import Example, PermutationScores, Reader, Template, permutation_cost, score_permutations
from fastreader.errors import InputError
from fastreader.moi import Observations, PositionBias, Utilities, debias, observe, rerank
from fastreader.moi.baselines import METHODS
from fastreader.moi.designs import prefixes

Row = dict[str, Any]

BASELINES = [name for name, method in METHODS.items() if "model" not in method.needs]
MOI = [
    "moi-calibrated",  # what the package does: N cyclic orderings, matched
    "moi-calibrated-descending",
    "moi-calibrated-3n",  # the paper's 3N random orderings, matched
    "moi-joint",  # the paper: joint likelihood, joint solve, descending
    "moi-joint-matched",
    "moi-joint-question",  # the same on the question's likelihood
    "moi-joint-question-matched",
    "moi-prefixes",  # the joint solve where it is identified
]
POLARITY = ["moi-calibrated", "qg-matched", "moi-joint", "rankgpt"]  # also read in reverse
REVERSED = " (reversed)"


def all_orders(
    reader: Reader,
    template: Template,
    example: Example,
    scores: PermutationScores,
    bias: PositionBias,
    methods: list[str],
    seed: int,
    options: dict[str, Any],
) -> dict[str, Row]:
    """Each method's order, tokens and details, or the error that says why it has none.

    Args:
        reader, template: score.
        example: the question with N passages.
        scores: its 3N random orderings, passages and each passage alone scored too.
        bias: measured on other questions.
        methods: names out of BASELINES and MOI.
        seed: of this question.
        options: further settings of baselines, by name of the argument (`model`, `count`, ...).
    """
    question = _Question(reader, template, example, scores, bias, seed)
    rows: dict[str, Row] = {}
    for name in methods:
        try:
            if name in METHODS:
                settings = {"bias": bias, "seed": seed, "template": template, **options}
                found = METHODS[name](reader, example.question, example.passages, **settings).to_dict()
                rows[name] = {key: found[key] for key in ("order", "computed", "given", "details")}
            else:
                rows[name] = question.moi(name)
        except InputError as error:
            rows[name] = {"error": str(error)}
    for name in POLARITY:
        if "order" in rows.get(name, {}):
            rows[name + REVERSED] = {**rows[name], "order": rows[name]["order"][::-1]}
    return rows


class _Question:
    """MoI's variants; what several of them need is made once."""

    def __init__(
        self,
        reader: Reader,
        template: Template,
        example: Example,
        scores: PermutationScores,
        bias: PositionBias,
        seed: int,
    ) -> None:
        self.reader, self.template, self.bias, self.seed = reader, template, bias, seed
        self.example = replace(example, candidates=[])
        self.scores = scores
        self.cyclic: Any = None

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
        """As `moi.rerank` does with a calibration."""
        if self.cyclic is None:
            self.cyclic = rerank(
                self.reader, self.example, bias=self.bias, template=self.template, seed=self.seed, max_passages=10**6
            )
        assert self.cyclic.utilities is not None
        row = _row(self.cyclic.utilities, order)
        return {**row, "computed": self.cyclic.cost.computed, "given": self.cyclic.cost.given}

    def joint(self, kind: str, order: str) -> Row:
        """The paper's solve on the 3N random orderings."""
        observed = observe(replace(self.scores, alone_loglik=None), kind)
        observed = replace(observed, passages=len(self.example.passages))
        return self.random(debias(observed, method="joint", seed=self.seed), order, passages=kind == "joint")

    def random(self, utilities: Utilities, order: str, *, alone: bool = False, passages: bool = False) -> Row:
        """An order of the utilities, at the cost of the 3N orderings with what was scored of them."""
        cost = permutation_cost(
            self.reader,
            self.example,
            permutations=self.scores.permutations,
            template=self.template,
            question_only=True,
            alone=alone,
            score_passages=passages,
        )
        return {**_row(utilities, order), "computed": cost.computed, "given": cost.given}

    def prefixes(self) -> Row:
        """What `moi.rerank` does without a calibration: random prefixes, joint solve, descending."""
        n = len(self.example.passages)
        scored = score_permutations(
            self.reader,
            self.example,
            permutations=prefixes(n, seed=self.seed),
            template=self.template,
            question_only=True,
        )
        observed: Observations = replace(observe(scored), passages=n)
        row = _row(debias(observed, method="joint", seed=self.seed), "descending")
        return {**row, "computed": scored.stats.computed, "given": scored.stats.given}


def _row(utilities: Utilities, order: str) -> Row:
    details = {
        "utility": utilities.utility.tolist(),
        "p_best": utilities.p_best.tolist(),
        "identified": utilities.identified,
        "flags": list(utilities.flags),
    }
    return {"order": utilities.order(order).tolist(), "details": details}
