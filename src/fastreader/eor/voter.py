"""Voter: answers of several retrievers to one, with weights that can be learned."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_whole
from fastreader.eor import counting, saving, scoring
from fastreader.eor import fit as fitting
from fastreader.eor.ballots import Ballots, ballots, is_single
from fastreader.eor.objective import Objective
from fastreader.eor.parameters import Parameters
from fastreader.eor.similarity import Similarity, SimilarityLike
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]


class Voter(Parameters):
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

    def __repr__(self) -> str:
        state = "unweighted" if self.retriever_weights is None else "weighted"
        # as given: what is wrong with a parameter is said when it is used, not when the voter is shown
        given = [self.similarities] if isinstance(self.similarities, (str, Similarity)) else self.similarities
        names = ", ".join(map(_shown, given))
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
        prepared = self._ballots([answers] if single else answers)
        names = [s.name for s in self.resolved()]
        votes = counting.votes(prepared, *self._weights(prepared), self._rules(), self.min_support, names)
        return votes[0] if single else votes

    def predict(self, X: Sequence[Any]) -> npt.NDArray[np.object_]:
        """The winning answers, object [Q]; None where nobody won."""
        prepared = self._ballots(X)
        out = np.empty(len(prepared.texts), dtype=object)
        won = self._winners(prepared).tolist()
        out[:] = [None if m < 0 else prepared.texts[q][m] for q, m in enumerate(won)]
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
            InputError: as `vote`; or a y of another shape or with NaN.
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
        if not 0 <= self.retriever_threshold < self.upper < np.inf:
            raise InputError(
                f"upper: expected a finite bound above retriever_threshold {self.retriever_threshold}, got {self.upper}"
            )
        for name in ("starts", "max_evaluations"):
            check_whole(name, getattr(self, name), none=name == "max_evaluations")
        prepared = self._ballots(X)
        correct = _correct(y, prepared)
        if not prepared.candidates.any():
            raise InputError("answers: expected at least one that can win, but all are empty or refusals")
        best, report = fitting.search(
            Objective(prepared, correct, self._rules()),
            upper=self.upper,
            starts=self.starts,
            accuracy=np.where(prepared.candidates, correct, 0.0).mean(axis=0),
            max_evaluations=self.max_evaluations,
            prune=self.prune,
            seed=self.seed,
        )
        found = best[: prepared.width]
        self.retriever_weights_ = np.where(self._rules().selected(found), found, 0.0)
        self.similarity_weights_ = scoring.shares(best[prepared.width :])
        self.retrievers_ = prepared.retrievers
        self.fit_report_ = report
        return self

    # Saving.

    def to_dict(self) -> dict[str, Any]:
        """Parameters and weights as JSON values; similarities by name and settings, `accept` by name."""
        return saving.voter_values(self)

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        *,
        similarities: Sequence[SimilarityLike] | None = None,
        accept: Callable[[str | None], bool] | None = None,
    ) -> Self:
        """Rebuild from `to_dict`.

        Args:
            values: what it gave.
            similarities: in place of the names there; they must have the same names and settings. Needed for
                "nli:reader", for functions, and for objects made with other than default settings.
            accept: as for the constructor; needed where it was not the default.

        Raises:
            InputError: a key is missing, weights that do not fit, similarities of other names or settings, or an
                `accept` of one's own that is not given.
        """
        return saving.make_voter(cls, values, similarities, accept)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, all of it or nothing."""
        saving.save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        similarities: Sequence[SimilarityLike] | None = None,
        accept: Callable[[str | None], bool] | None = None,
    ) -> Self:
        """Read what `save` wrote; arguments as `from_dict`.

        Raises:
            InputError: not such a file.
        """
        return cls.from_dict(saving.read(path), similarities=similarities, accept=accept)

    def _ballots(self, rows: Sequence[Any]) -> Ballots:
        return ballots(rows, self.resolved(), self.accept)

    def _winners(self, prepared: Ballots) -> npt.NDArray[np.int64]:
        return counting.count(prepared, *self._weights(prepared), self._rules(), self.min_support).won


def _shown(similarity: SimilarityLike) -> str:
    if isinstance(similarity, str):
        return similarity
    return similarity.name if isinstance(similarity, Similarity) else getattr(similarity, "__name__", repr(similarity))


def _correct(y: Any, prepared: Ballots) -> FloatArray:
    correct = np.asarray(y, dtype=np.float64)
    shape = prepared.present.shape
    if correct.shape != shape or not np.isfinite(correct).all():
        raise InputError(
            f"y: expected finite correctness of each answer, {list(shape)}, got {list(correct.shape)}"
            + ("" if np.isfinite(correct).all() else " with NaN or infinite values")
        )
    return correct
