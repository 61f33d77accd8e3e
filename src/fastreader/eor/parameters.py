"""Hold a voter's parameters by scikit-learn's conventions, and order its weights as the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np

from fastreader.core.checked import checked_methods
from fastreader.core.checks import check_choice, check_keys, expect, rejecting, shown
from fastreader.eor.answer import is_answer
from fastreader.eor.scoring import POOLINGS, Rules
from fastreader.eor.similarity import Similarity, SimilarityLike, resolve
from fastreader.eor.types import FloatArray


@checked_methods
@dataclass(eq=False, repr=False)
class Parameters:
    """The parameters of a `Voter`, stored as given and checked when used.

    Attributes:
        similarities: S of them, by name or as objects (`similarity.resolve`).
        retriever_weights: [M], or by name; None sets all to 1. `fit` learns others.
        similarity_weights: [S]; None sets all to 1.
        pooling: "mean", "max", "majority" or "plurality".
        similarity_threshold: s of majority and plurality; answers with a larger similarity agree.
        retriever_threshold: t; a retriever is selected if its weight is larger.
        dropped_vote: whether a retriever that is not selected still supports others' answers.
        ties: "first" in the list, or "weight": the largest weight first.
        min_support: abstain if the winner's pooled similarity is smaller; None disables it.
        accept: whether a text can win and be supported; by default any text but empty ones and refusals.
        upper: bound of every weight in `fit`.
        starts: number of starts of the search in `fit`.
        max_evaluations: maximum number of evaluations per start; None allows 200 per weight.
        prune: whether `fit` drops retrievers that the training questions do not need.
        seed: seed of the random starts.
    """

    similarities: Sequence[SimilarityLike] = ("exact", "f1")
    _: KW_ONLY
    retriever_weights: Sequence[float] | Mapping[str, float] | None = None
    similarity_weights: Sequence[float] | None = None
    pooling: str = "mean"
    similarity_threshold: float = 0.8
    retriever_threshold: float = 0.1
    dropped_vote: bool = False
    ties: str = "first"
    min_support: float | None = None
    accept: Callable[[str | None], bool] = is_answer
    upper: float = 0.6
    starts: int = 8
    max_evaluations: int | None = None
    prune: bool = True
    seed: int = 0

    FITTED_WITH: ClassVar[frozenset[str]] = frozenset(
        {
            "similarities", "retriever_weights", "similarity_weights", "pooling", "similarity_threshold",
            "retriever_threshold", "dropped_vote", "ties", "accept",
        }
    )  # fmt: skip
    LEARNED: ClassVar[tuple[str, ...]] = ("retriever_weights_", "similarity_weights_", "retrievers_", "fit_report_")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Replace parameters, discarding the learned weights if one of `FITTED_WITH` is set, to whichever value.

        Raises:
            InputError: if there is no such parameter.
        """
        check_keys("set_params", params, self.get_params())
        for name, value in params.items():
            setattr(self, name, value)
        if self.FITTED_WITH & params.keys():
            for name in self.LEARNED:
                self.__dict__.pop(name, None)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True, two_d_labels=True, multi_output=True),
            input_tags=InputTags(two_d_array=False, string=True, allow_nan=True),
            no_validation=True,
        )

    def resolved(self) -> list[Similarity]:
        """Return the similarities as objects, the same objects each time for the same parameter."""
        cached = self.__dict__.get("_resolved")
        if cached is None or cached[0] is not self.similarities:
            given = self.similarities
            listed = not isinstance(given, (str, Similarity)) and bool(given)
            expect(listed, "similarities", "a list of at least one", given)
            found = [resolve(similarity) for similarity in given]
            for i, similarity in enumerate(found):
                twice = any(s.name == similarity.name and s.settings() == similarity.settings() for s in found[:i])
                expect(not twice, "similarities", "each once", [s.name for s in found])
            cached = self.__dict__["_resolved"] = (given, found)
        measures: list[Similarity] = cached[1]
        return measures

    def _rules(self) -> Rules:
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("ties", self.ties, ("first", "weight"))
        for name in ("similarity_threshold", "retriever_threshold", "min_support"):
            value = getattr(self, name)
            # NaN is neither above nor below anything, so that it would decide silently
            number = isinstance(value, Real) and not np.isnan(float(value))
            expect(number or (name, value) == ("min_support", None), name, "a number", value)
        return Rules(**{item.name: getattr(self, item.name) for item in fields(Rules)})


def given_weights(weights: Any, retrievers: list[str] | None, width: int) -> FloatArray:
    """Return checked w^r float64 [M] from numbers, numbers by name, or None, which sets all to 1."""
    if weights is None:
        return np.ones(width)
    if isinstance(weights, Mapping):
        expected = (
            f"for each of {', '.join(retrievers)}" if retrievers else "in order, since answers came without names"
        )
        expect(set(weights) == set(retrievers or ()), "retriever_weights", f"one {expected}", list(weights))
        weights = [weights[name] for name in retrievers or ()]
    return nonnegative("retriever_weights", weights, width)


def learned_weights(
    weights: FloatArray, names: list[str] | None, retrievers: list[str] | None, width: int
) -> FloatArray:
    """Return learned w^r float64 [M], reordered from the retrievers `names` to `retrievers` if both have names."""
    if names and retrievers:
        same = sorted(names) == sorted(retrievers)
        expect(same, "answers", f"the fitted retrievers {', '.join(names)}", ", ".join(retrievers))
        weights = weights[[names.index(name) for name in retrievers]]
    return nonnegative("retriever_weights", weights, width)


def nonnegative(name: str, weights: Any, count: int) -> FloatArray:
    """Return `weights` as float64 [count], checked to be finite numbers of at least 0."""
    expected = f"{count} numbers of at least 0"
    with rejecting(f"{name}: expected {expected}, got {shown(weights)}", TypeError, ValueError):
        found = np.asarray(weights, dtype=np.float64)
    expect(found.shape == (count,) and bool(((found >= 0) & np.isfinite(found)).all()), name, expected, weights)
    return found
