"""Voter: answers of several retrievers to one, with weights that can be learned."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_int
from fastreader.eor import counting, scoring, weights
from fastreader.eor import fit as fitting
from fastreader.eor import voter as saving
from fastreader.eor.answer import is_answer
from fastreader.eor.ballots import Ballots, ballots, is_single
from fastreader.eor.fit import FitReport
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
            check_int(name, getattr(self, name), optional=name == "max_evaluations")
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


V = TypeVar("V", bound="Voter")


Accept = Callable[[str | None], bool]


def voter_values(voter: Voter) -> dict[str, Any]:
    """Parameters, similarities and what was learned, as JSON values."""
    plain = {k: v for k, v in voter.get_params().items() if k not in ("similarities", "accept")}
    for name in ("retriever_weights", "similarity_weights"):
        value = plain[name]
        if value is not None:
            mapped = isinstance(value, Mapping)
            plain[name] = {k: float(w) for k, w in value.items()} if mapped else [float(w) for w in value]
    # a search over parameters sets NumPy's numbers, which JSON does not take
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in plain.items()}
    measures = voter.resolved()
    out: dict[str, Any] = {
        "similarities": [s.name for s in measures],
        "similarity_settings": [s.settings() for s in measures],
        "accept": None if voter.accept is is_answer else _name(voter.accept),
        "parameters": plain,
    }
    if hasattr(voter, "retriever_weights_"):
        out["fitted"] = {
            "retrievers": voter.retrievers_,
            "retriever_weights": voter.retriever_weights_.tolist(),
            "similarity_weights": voter.similarity_weights_.tolist(),
            "report": voter.fit_report_.to_dict() if voter.fit_report_ else None,
        }
    return out


def make_voter(
    kind: type[V],
    values: Mapping[str, Any],
    similarities: Sequence[SimilarityLike] | None,
    accept: Accept | None,
) -> V:
    """The voter of `voter_values`; as `Voter.from_dict`."""
    try:
        expected, settings = list(values["similarities"]), list(values["similarity_settings"])
        if values["accept"] is not None and accept is None:
            raise InputError(f"accept: the voter was saved with {values['accept']}; give it to load the voter")
        given = expected if similarities is None else list(similarities)
        voter = kind(given, accept=accept or is_answer, **values["parameters"])
        _check_similarities(voter, expected, settings)
        if fitted := values.get("fitted"):
            retrievers, found = fitted["retrievers"], fitted["retriever_weights"]
            count = len(found if retrievers is None else retrievers)
            voter.retriever_weights_ = weights.checked(found, count, "retriever_weights")
            voter.similarity_weights_ = weights.checked(
                fitted["similarity_weights"], len(expected), "similarity_weights"
            )
            voter.retrievers_ = None if retrievers is None else [str(name) for name in retrievers]
            report = fitted.get("report")
            voter.fit_report_ = FitReport(**report) if report else None
        return voter
    except (KeyError, TypeError) as error:
        raise InputError(f"Voter.from_dict: {error!r} in values with the keys {sorted(values)}") from error


def _check_similarities(voter: Voter, names: list[str], settings: list[Any]) -> None:
    having = voter.resolved()
    if len(settings) != len(names):
        raise InputError(f"similarity_settings: expected one for each of {', '.join(names)}, got {len(settings)}")
    if [s.name for s in having] != names:
        raise InputError(f"similarities: expected {', '.join(names)}, got {', '.join(s.name for s in having)}")
    for similarity, expected in zip(having, settings, strict=True):
        if (found := similarity.settings()) != expected:
            raise InputError(
                f"similarities: {similarity.name} was saved with {json.dumps(expected)}, and would be loaded with "
                f"{json.dumps(found)}; give it as an object, made as it was"
            )


def save(voter: Voter, path: str | os.PathLike[str]) -> None:
    """Write as JSON, all of it or nothing."""
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        scratch.write_text(json.dumps(voter_values(voter), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values in a file that `save` wrote.

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
    return values


def names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The similarities' names in what `voter_values` gave.

    Raises:
        InputError: it is something else.
    """
    found = values.get("similarities")
    if not isinstance(found, list) or not isinstance(values.get("parameters"), dict):
        raise InputError(f"Voter: expected similarities and parameters, got the keys {sorted(values)}")
    return tuple(map(str, found))


def _name(function: Accept) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
