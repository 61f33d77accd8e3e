"""Voter: answers of several retrievers to one, with weights that can be learned."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastreader.eor import fit as fitting
from fastreader.eor import scoring
from fastreader.eor.answer import is_answer
from fastreader.eor.ballots import Ballots, ballots, is_single
from fastreader.eor.pooling import pooling
from fastreader.eor.similarity import Similarity, SimilarityLike, resolve
from fastreader.eor.types import Vote
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]


class Voter:
    """The ensemble's voter (section 4): each answer's weight times its pooled similarity to the others.

    Score of answer m (Eqs. 6 and 7): s_m = w^r_m pool_n sum_k w^s_k sim_k(y_m, y_n), w^s divided by its sum. Without
    weights all count the same. An empty answer and a refusal are similar to nothing and cannot win; a retriever that
    failed (None) is not counted at all.

    It follows scikit-learn's conventions, `get_params`, `set_params`, `fit`, `predict`, `score` and clones, so that its
    cross-validation tools work; scikit-learn itself is not needed.

    Attributes after `fit`:
        retriever_weights_: float64 [M], 0 for a retriever that is not selected.
        similarity_weights_: float64 [S], sum 1.
        retrievers_: M names, or None where the answers came without.
        fit_report_: `FitReport`.
    """

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

    # What scikit-learn asks of an estimator.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Replace arguments of the constructor.

        Raises:
            InputError: an argument that is none.
        """
        known = self.get_params()
        if unknown := sorted(set(params) - set(known)):
            raise InputError(f"set_params: unknown parameter {unknown[0]!r}; a Voter has {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True, two_d_labels=True, multi_output=True),
            input_tags=InputTags(two_d_array=False, string=True, allow_nan=True),
            no_validation=True,
        )

    def __repr__(self) -> str:
        state = "unweighted" if self.retriever_weights is None else "weighted"
        names = ", ".join(similarity.name for similarity in self._measures())
        return f"Voter({names}; {self.pooling}; {'fitted' if hasattr(self, 'retriever_weights_') else state})"

    # Voting.

    def vote(self, answers: Any) -> Any:
        """Choose among the answers to one question, or to each of many.

        Args:
            answers: an `Answers` or a list of M texts and Nones: one question; or a list of these: many.

        Returns:
            A `Vote`, or a list of them.

        Raises:
            InputError: fewer than two retrievers, weights that are not theirs, a similarity that is NaN.
        """
        single = is_single(answers)
        votes = self._votes(self._ballots([answers] if single else answers))
        return votes[0] if single else votes

    def predict(self, X: Sequence[Any]) -> npt.NDArray[np.object_]:
        """The winning answers, object [Q]; None where nobody won."""
        prepared = self._ballots(X)
        out = np.empty(len(prepared.texts), dtype=object)
        out[:] = [None if m < 0 else prepared.texts[q][m] for q, m in enumerate(self._winners(prepared).tolist())]
        return out

    def winners(self, X: Sequence[Any]) -> npt.NDArray[np.int64]:
        """The winners' places among the retrievers, int64 [Q]; -1 where nobody won."""
        return self._winners(self._ballots(X))

    def score(self, X: Sequence[Any], y: Any) -> float:
        """Mean correctness of the winning answers; nobody winning counts 0.

        Args:
            X: Q sets of answers, as for `vote`.
            y: correctness of each answer, [Q, M].

        Raises:
            As `vote`; InputError for a y of another shape or with NaN.
        """
        prepared = self._ballots(X)
        correct = _correct(y, prepared)
        won = self._winners(prepared)
        return float(np.where(won >= 0, correct[np.arange(len(won)), won], 0.0).mean())

    # Learning.

    def fit(self, X: Sequence[Any], y: Any) -> Self:
        """Find weights that maximise the mean correctness of the winning answers.

        SciPy's Nelder-Mead within [0, upper] from several starts (`fit.search`); `min_support` has no part in it.

        Args:
            X: Q sets of answers, as for `vote`.
            y: correctness of each answer, [Q, M], larger is better.

        Returns:
            The voter itself.

        Raises:
            InputError: as `vote` and `score`; or no question has an answer that could win.
        """
        if not 0 <= self.retriever_threshold < self.upper:
            raise InputError(
                f"upper: expected a bound above retriever_threshold {self.retriever_threshold}, got {self.upper}"
            )
        for name in ("starts", "max_evaluations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: expected at least 1, got {value}")
        prepared = self._ballots(X)
        correct = _correct(y, prepared)
        if not prepared.candidates.any():
            raise InputError("answers: expected at least one that can win, but all are empty or refusals")
        weights, report = fitting.search(
            fitting.Objective(prepared, correct, self._rules()),
            upper=self.upper,
            starts=self.starts,
            accuracy=np.where(prepared.candidates, correct, 0.0).mean(axis=0),
            max_evaluations=self.max_evaluations,
            prune=self.prune,
            seed=self.seed,
        )
        found = weights[: prepared.width]
        self.retriever_weights_ = np.where(self._rules().selected(found), found, 0.0)
        self.similarity_weights_ = scoring.shares(weights[prepared.width :])
        self.retrievers_ = prepared.retrievers
        self.fit_report_ = report
        return self

    # Saving.

    def to_dict(self) -> dict[str, Any]:
        """Parameters and weights as JSON values; similarities by name, `accept` not at all."""
        plain = {k: v for k, v in self.get_params().items() if k not in ("similarities", "accept")}
        for name in ("retriever_weights", "similarity_weights"):
            value = plain[name]
            if value is not None:
                plain[name] = dict(value) if isinstance(value, Mapping) else [float(w) for w in value]
        out: dict[str, Any] = {"similarities": [s.name for s in self._measures()], "parameters": plain}
        if hasattr(self, "retriever_weights_"):
            out["fitted"] = {
                "retrievers": self.retrievers_,
                "retriever_weights": self.retriever_weights_.tolist(),
                "similarity_weights": self.similarity_weights_.tolist(),
                "report": self.fit_report_.to_dict() if self.fit_report_ else None,
            }
        return out

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        *,
        similarities: Sequence[SimilarityLike] | None = None,
        accept: Callable[[str | None], bool] = is_answer,
    ) -> Self:
        """Rebuild from `to_dict`.

        Args:
            values: what it gave.
            similarities: in place of the names there, which these must have; needed for "nli:reader", for
                functions, and for objects made with other than default settings.
            accept: as for the constructor.

        Raises:
            InputError: a key is missing, weights that do not fit, or similarities of other names.
        """
        try:
            names = list(values["similarities"])
            given = names if similarities is None else list(similarities)
            voter = cls(given, accept=accept, **values["parameters"])
            if (having := [s.name for s in voter._measures()]) != names:
                raise InputError(f"similarities: expected {', '.join(names)}, got {', '.join(having)}")
            if fitted := values.get("fitted"):
                voter.retriever_weights_ = np.asarray(fitted["retriever_weights"], dtype=np.float64)
                voter.similarity_weights_ = np.asarray(fitted["similarity_weights"], dtype=np.float64)
                voter.retrievers_ = fitted["retrievers"]
                report = fitted.get("report")
                voter.fit_report_ = fitting.FitReport(**report) if report else None
                voter._check_weights(voter.retriever_weights_, len(voter.retriever_weights_), "retriever_weights")
                voter._check_weights(voter.similarity_weights_, len(names), "similarity_weights")
            return voter
        except (KeyError, TypeError) as error:
            raise InputError(f"Voter.from_dict: {error!r} in values with the keys {sorted(values)}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, all of it or nothing."""
        target = Path(path)
        scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            scratch.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        similarities: Sequence[SimilarityLike] | None = None,
        accept: Callable[[str | None], bool] = is_answer,
    ) -> Self:
        """Read what `save` wrote; arguments as `from_dict`.

        Raises:
            InputError: not such a file.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not JSON ({error})") from error
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected a JSON object, got {type(values).__name__}")
        return cls.from_dict(values, similarities=similarities, accept=accept)

    # The parts.

    def _measures(self) -> list[Similarity]:
        """The similarities as objects, the same ones each time for the same parameter."""
        cached = self.__dict__.get("_resolved")
        if cached is None or cached[0] is not self.similarities:
            if isinstance(self.similarities, (str, Similarity)) or not self.similarities:
                raise InputError(f"similarities: expected a list of at least one, got {self.similarities!r}")
            found = [resolve(similarity) for similarity in self.similarities]
            if len({s.name for s in found}) < len(found):
                raise InputError(f"similarities: expected each once, got {', '.join(s.name for s in found)}")
            cached = self.__dict__["_resolved"] = (self.similarities, found)
        measures: list[Similarity] = cached[1]
        return measures

    def _rules(self) -> scoring.Rules:
        pooling(self.pooling)
        if self.ties not in ("first", "weight"):
            raise InputError(f"ties: expected 'first' or 'weight', got {self.ties!r}")
        return scoring.Rules(
            self.pooling, self.similarity_threshold, self.retriever_threshold, self.dropped_vote, self.ties
        )

    def _ballots(self, rows: Sequence[Any]) -> Ballots:
        return ballots(rows, self._measures(), self.accept)

    def _weights(self, prepared: Ballots) -> tuple[FloatArray, FloatArray]:
        """w^r [M] and w^s [S], of the fit where there was one."""
        if hasattr(self, "retriever_weights_"):
            if self.retrievers_ and prepared.retrievers and self.retrievers_ != prepared.retrievers:
                raise InputError(
                    f"answers: expected those of the retrievers of the fit, {', '.join(self.retrievers_)}; got "
                    f"{', '.join(prepared.retrievers)}"
                )
            retriever, similarity = self.retriever_weights_, self.similarity_weights_
        else:
            retriever = self._given(prepared)
            count = prepared.similarity.shape[1]
            given = self.similarity_weights
            similarity = np.ones(count) if given is None else np.asarray(given, dtype=np.float64)
        return (
            self._check_weights(retriever, prepared.width, "retriever_weights"),
            self._check_weights(similarity, prepared.similarity.shape[1], "similarity_weights"),
        )

    def _given(self, prepared: Ballots) -> FloatArray:
        given = self.retriever_weights
        if given is None:
            return np.ones(prepared.width)
        if not isinstance(given, Mapping):
            return np.asarray(given, dtype=np.float64)
        if prepared.retrievers is None:
            raise InputError("retriever_weights: by name, but the answers came without retrievers' names")
        if set(given) != set(prepared.retrievers):
            raise InputError(
                f"retriever_weights: expected one for each of {', '.join(prepared.retrievers)}, got {', '.join(given)}"
            )
        return np.array([given[name] for name in prepared.retrievers], dtype=np.float64)

    @staticmethod
    def _check_weights(weights: FloatArray, count: int, name: str) -> FloatArray:
        if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
            raise InputError(f"{name}: expected {count} numbers from 0, got {weights.tolist()}")
        return weights

    def _count(self, prepared: Ballots) -> tuple[FloatArray, FloatArray, npt.NDArray[np.int64]]:
        """Scores [Q, M], pooled similarities [Q, M], and winners [Q] with -1 where nobody won."""
        rules = self._rules()
        retriever, similarity = self._weights(prepared)
        selected = rules.selected(retriever)
        voters, candidates = rules.voters(prepared.present, selected), prepared.candidates & selected
        pooled = scoring.support(scoring.combine(prepared.similarity, similarity), voters, candidates, rules)
        score = scoring.scores(pooled, candidates, retriever)
        won = scoring.winners(score, retriever, rules)
        if self.min_support is not None:
            low = np.round(pooled[np.arange(len(won)), won], scoring.DECIMALS) < self.min_support
            won = np.where(low, -1, won)
        return score, pooled, won

    def _winners(self, prepared: Ballots) -> npt.NDArray[np.int64]:
        return self._count(prepared)[2]

    def _votes(self, prepared: Ballots) -> list[Vote]:
        score, pooled, won = self._count(prepared)
        rules = self._rules()
        retriever, similarity = self._weights(prepared)
        voters = rules.voters(prepared.present, rules.selected(retriever))
        parts = scoring.contributions(prepared.similarity, similarity, voters, score, rules)
        names = [s.name for s in self._measures()]
        votes = []
        for q, m in enumerate(won.tolist()):
            winner = None if m < 0 else m
            name = None
            if winner is not None:
                name = prepared.retrievers[winner] if prepared.retrievers else str(winner)
            votes.append(
                Vote(
                    answer=None if winner is None else prepared.texts[q][winner],
                    winner=winner,
                    retriever=name,
                    scores=score[q],
                    support=pooled[q],
                    contributions=parts[q],
                    similarities=names,
                    abstained=None if winner is not None else self._why(prepared, q, score[q]),
                )
            )
        return votes

    def _why(self, prepared: Ballots, q: int, score: FloatArray) -> str:
        if not prepared.present[q].any():
            return "every retriever failed"
        if not prepared.candidates[q].any():
            return "all answers are empty or refusals"
        if np.isneginf(score).all():
            return "no retriever that is selected has an answer"
        return f"the best answer's support is below {self.min_support}"


def _correct(y: Any, prepared: Ballots) -> FloatArray:
    correct = np.asarray(y, dtype=np.float64)
    shape = prepared.present.shape
    if correct.shape != shape or not np.isfinite(correct).all():
        raise InputError(
            f"y: expected finite correctness of each answer, {list(shape)}, got {list(correct.shape)}"
            + ("" if np.isfinite(correct).all() else " with NaN or infinite values")
        )
    return correct
