"""Parameters: what a voter is told, and what of it counts: similarities, rules and weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fastreader.eor import fit as fitting
from fastreader.eor import scoring, weights
from fastreader.eor.answer import is_answer
from fastreader.eor.ballots import Ballots
from fastreader.eor.pooling import pooling
from fastreader.eor.similarity import Similarity, SimilarityLike, resolve
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]


class Estimator:
    """Parameters by name: the constructor stores its arguments as they are, under their names.

    Attributes:
        forgets: parameters that what was learned belongs to; setting one of them forgets it.
        learned: names of what `fit` leaves.
    """

    forgets: ClassVar[frozenset[str]] = frozenset()
    learned: ClassVar[tuple[str, ...]] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Replace arguments of the constructor.

        What a fit learned is forgotten when an argument that it belongs to is set, to whichever value.

        Raises:
            InputError: an argument that is none.
        """
        known = self.get_params()
        if unknown := sorted(set(params) - set(known)):
            kind = type(self).__name__
            raise InputError(f"set_params: unknown parameter {unknown[0]!r}; a {kind} has {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        if self.forgets & params.keys():
            for name in self.learned:
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


class Parameters(Estimator):
    """The parameters of a `Voter`, whose weights a fit replaces."""

    forgets = frozenset(
        {
            "similarities", "retriever_weights", "similarity_weights", "pooling", "similarity_threshold",
            "retriever_threshold", "dropped_vote", "ties", "accept",
        }
    )  # fmt: skip
    learned = ("retriever_weights_", "similarity_weights_", "retrievers_", "fit_report_")

    retriever_weights_: FloatArray
    similarity_weights_: FloatArray
    retrievers_: list[str] | None
    fit_report_: fitting.FitReport | None

    def __init__(
        self,
        similarities: Sequence[SimilarityLike] = ("exact", "f1"),
        *,
        retriever_weights: Sequence[float] | Mapping[str, float] | None = None,
        similarity_weights: Sequence[float] | None = None,
        pooling: str = "mean",
        similarity_threshold: float = 0.8,
        retriever_threshold: float = 0.1,
        dropped_vote: bool = False,
        ties: str = "first",
        min_support: float | None = None,
        accept: Callable[[str | None], bool] = is_answer,
        upper: float = 0.6,
        starts: int = 8,
        max_evaluations: int | None = None,
        prune: bool = True,
        seed: int = 0,
    ) -> None:
        """Set the parameters; they are checked when used.

        Args:
            similarities: S of them, by name or as objects (`similarity.resolve`).
            retriever_weights: [M], or by name; None: all 1. `fit` finds others.
            similarity_weights: [S]; None: all 1.
            pooling: "mean", "max", "majority" or "plurality".
            similarity_threshold: s of majority and plurality: answers of larger similarity say the same.
            retriever_threshold: t; a retriever takes part when its weight is larger.
            dropped_vote: whether a retriever that is not selected still supports others' answers.
            ties: "first" in the list, or "weight": the largest weight first.
            min_support: abstain when the winner's pooled similarity is below; None: never.
            accept: whether a text can win and be supported; by default what is not empty and no refusal.
            upper: bound of every weight in `fit`.
            starts: of the search in `fit`.
            max_evaluations: for each start; None: 200 a weight.
            prune: drop retrievers in `fit` that the training questions do not need.
            seed: of the starts that are drawn.
        """
        self.similarities = similarities
        self.retriever_weights = retriever_weights
        self.similarity_weights = similarity_weights
        self.pooling = pooling
        self.similarity_threshold = similarity_threshold
        self.retriever_threshold = retriever_threshold
        self.dropped_vote = dropped_vote
        self.ties = ties
        self.min_support = min_support
        self.accept = accept
        self.upper = upper
        self.starts = starts
        self.max_evaluations = max_evaluations
        self.prune = prune
        self.seed = seed

    def resolved(self) -> list[Similarity]:
        """The similarities as objects, the same ones each time for the same parameter."""
        cached = self.__dict__.get("_resolved")
        if cached is None or cached[0] is not self.similarities:
            if isinstance(self.similarities, (str, Similarity)) or not self.similarities:
                raise InputError(f"similarities: expected a list of at least one, got {self.similarities!r}")
            found = [resolve(similarity) for similarity in self.similarities]
            for i, similarity in enumerate(found):
                if any(s.name == similarity.name and s.settings() == similarity.settings() for s in found[:i]):
                    raise InputError(f"similarities: expected each once, got {', '.join(s.name for s in found)}")
            cached = self.__dict__["_resolved"] = (self.similarities, found)
        measures: list[Similarity] = cached[1]
        return measures

    def _rules(self) -> scoring.Rules:
        pooling(self.pooling)
        if self.ties not in ("first", "weight"):
            raise InputError(f"ties: expected 'first' or 'weight', got {self.ties!r}")
        for name in ("similarity_threshold", "retriever_threshold", "min_support"):
            value = getattr(self, name)
            # NaN is neither above nor below anything, so that it would decide silently
            if (name, value) != ("min_support", None) and (not isinstance(value, Real) or np.isnan(float(value))):
                raise InputError(f"{name}: expected a number, got {value!r}")
        return scoring.Rules(
            self.pooling, self.similarity_threshold, self.retriever_threshold, self.dropped_vote, self.ties
        )

    def _weights(self, prepared: Ballots) -> tuple[FloatArray, FloatArray]:
        """w^r [M] and w^s [S], of the fit where there was one."""
        names, width, count = prepared.retrievers, prepared.width, prepared.similarity.shape[1]
        if hasattr(self, "retriever_weights_"):
            retriever = weights.learned(self.retriever_weights_, self.retrievers_, names, width)
            return retriever, weights.checked(self.similarity_weights_, count, "similarity_weights")
        similarity = np.ones(count) if self.similarity_weights is None else self.similarity_weights
        retriever = weights.given(self.retriever_weights, names, width)
        return retriever, weights.checked(similarity, count, "similarity_weights")
