"""Choose one of several retrievers' answers, with weights that can be learned."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import accept as accept_value
from fastreader.core.checked import checked_methods, kind_of
from fastreader.core.checks import MOST_STARTS, check_int, check_output, expect, located, rebuilding, require
from fastreader.data.files import read_object, write_json
from fastreader.eor import scoring
from fastreader.eor.answer import is_answer
from fastreader.eor.fit import FitReport, Objective, search
from fastreader.eor.parameters import Parameters, given_weights, learned_weights, nonnegative
from fastreader.eor.scoring import Ballots, ballots, is_single
from fastreader.eor.similarity import Similarity, SimilarityLike
from fastreader.eor.types import FloatArray, IntArray

Accept = Callable[[str | None], bool]

_NUMBERS = kind_of(npt.ArrayLike)


@checked_methods
class Voter(Parameters):
    """The ensemble's voter (section 4): each answer's weight times its pooled similarity to the others.

    Score of answer m (Eqs. 6 and 7): s_m = w^r_m pool_n sum_k w^s_k sim_k(y_m, y_n), with w^s divided by its sum.
    Without weights all count the same. Empty answers and refusals are similar to nothing and cannot win; a retriever
    that failed (None) is not counted.

    The voter follows scikit-learn's conventions (`get_params`, `set_params`, `fit`, `predict`, `score`, clones), so its
    cross-validation tools work; scikit-learn itself is not needed.

    Attributes after `fit`:
        retriever_weights_: float64 [M], 0 for a retriever that is not selected.
        similarity_weights_: float64 [S], sum 1.
        retrievers_: M names, or None if the answers came without names.
        fit_report_: `FitReport`.
    """

    retriever_weights_: FloatArray
    similarity_weights_: FloatArray
    retrievers_: list[str] | None
    fit_report_: FitReport | None

    def __repr__(self) -> str:
        state = "unweighted" if self.retriever_weights is None else "weighted"
        # as given: an invalid parameter raises when it is used, not when the voter is shown
        given = [self.similarities] if isinstance(self.similarities, (str, Similarity)) else self.similarities
        names = ", ".join(map(_shown, given))
        return f"Voter({names}; {self.pooling}; {'fitted' if hasattr(self, 'retriever_weights_') else state})"

    # Voting.

    def vote(self, answers: Any) -> Any:
        """Choose among the answers to one question, or to each of several.

        Args:
            answers: an `Answers` or a list of M texts and Nones for one question, or a list of these.

        Returns:
            A `Vote`, or a list of them.

        Raises:
            InputError: if there are fewer than two retrievers, the weights are not theirs, or a similarity is NaN.
        """
        single = is_single(answers)
        prepared = self._ballots([answers] if single else answers, "answers")
        names = [s.name for s in self.resolved()]
        votes = scoring.votes(prepared, *self._weights(prepared), self._rules(), names)
        return votes[0] if single else votes

    def predict(self, X: Any) -> npt.NDArray[np.object_]:
        """Return the winning answers, object [Q], with None if no answer won."""
        prepared = self._ballots(X)
        out = np.empty(len(prepared.texts), dtype=object)
        won = self._winners(prepared).tolist()
        out[:] = [None if m < 0 else prepared.texts[q][m] for q, m in enumerate(won)]
        return out

    def winners(self, X: Any) -> IntArray:
        """Return the winners' indices among the retrievers, int64 [Q], with -1 if no answer won."""
        return self._winners(self._ballots(X))

    def score(self, X: Any, y: Any) -> float:
        """Return the mean correctness of the winning answers, counting 0 for a question without a winner.

        Args:
            X: Q sets of answers, as in `vote`.
            y: correctness of each answer, [Q, M].

        Raises:
            InputError: if `vote` raises it, or `y` has another shape or NaN.
        """
        prepared = self._ballots(X)
        correct = _correct(y, prepared)
        won = self._winners(prepared)
        return float(np.where(won >= 0, correct[np.arange(len(won)), won], 0.0).mean())

    # Learning.

    def fit(self, X: Any, y: Any) -> Self:
        """Find weights that maximise the mean correctness of the winning answers, without `min_support`.

        SciPy's Nelder-Mead searches within [0, upper] from several starts (`fit.search`).

        Args:
            X: Q sets of answers, as in `vote`.
            y: correctness of each answer, [Q, M], larger is better.

        Returns:
            The voter itself.

        Raises:
            InputError: if `vote` or `score` raises it, or no answer can win.
        """
        bounded = 0 <= self.retriever_threshold < self.upper < np.inf
        expect(bounded, "upper", f"a finite bound above retriever_threshold {self.retriever_threshold}", self.upper)
        check_int("starts", self.starts, 1, MOST_STARTS)
        check_int("max_evaluations", self.max_evaluations, optional=True)
        prepared = self._ballots(X)
        correct = _correct(y, prepared)
        can_win = bool(prepared.candidates.any())
        require(can_win, "X: answers: expected at least one that can win, but all are empty or refusals")
        best, report = search(
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
        """Return parameters and weights as JSON values, similarities by name and settings, `accept` by name."""
        plain = {k: v for k, v in self.get_params().items() if k not in ("similarities", "accept")}
        for name in ("retriever_weights", "similarity_weights"):
            value = plain[name]
            if value is not None:
                mapped = isinstance(value, Mapping)
                plain[name] = {k: float(w) for k, w in value.items()} if mapped else [float(w) for w in value]
        # a parameter search sets NumPy's numbers, which JSON cannot hold
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in plain.items()}
        own = getattr(self.accept, "__qualname__", type(self.accept).__qualname__)
        out: dict[str, Any] = {
            "similarities": [s.name for s in self.resolved()],
            "similarity_settings": [s.settings() for s in self.resolved()],
            "accept": None if self.accept is is_answer else own,
            "parameters": plain,
        }
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
        accept: Accept | None = None,
    ) -> Self:
        """Rebuild from `to_dict`.

        Args:
            values: the saved values.
            similarities: objects to use instead of the saved names; names and settings must be equal. Needed for
                "nli:reader", for functions, and for objects made with other than default settings.
            accept: as in the constructor; needed if it was not the default.

        Raises:
            InputError: if a key is missing, weights do not fit, similarities have other names or settings, or the
                saved voter had another `accept` than the default and none is given.
        """
        with rebuilding("Voter.from_dict", values):
            names, settings = list(values["similarities"]), list(values["similarity_settings"])
            saved = values["accept"]
            given_too = saved is None or accept is not None
            require(given_too, f"accept: the voter was saved with {saved}; pass it to load the voter")
            given = names if similarities is None else list(similarities)
            voter = cls(given, accept=accept or is_answer, **values["parameters"])
            voter._check_similarities(names, settings)
            if fitted := values.get("fitted"):
                retrievers, found = fitted["retrievers"], fitted["retriever_weights"]
                count = len(found if retrievers is None else retrievers)
                voter.retriever_weights_ = nonnegative("retriever_weights", found, count)
                shares = fitted["similarity_weights"]
                voter.similarity_weights_ = nonnegative("similarity_weights", shares, len(names))
                voter.retrievers_ = None if retrievers is None else [str(name) for name in retrievers]
                report = fitted.get("report")
                voter.fit_report_ = FitReport(**report) if report else None
            return voter

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, whole or not at all."""
        check_output("path", path)
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Read a voter that `save` wrote.

        Args:
            path: the file.
            options: `similarities` and `accept` of `from_dict`.

        Raises:
            InputError: if the file is not a saved voter.
        """
        values = read_object(path)
        with located(os.fspath(path)):
            return cls.from_dict(values, **options)

    def _check_similarities(self, names: list[str], settings: list[Any]) -> None:
        having = self.resolved()
        one_each = len(settings) == len(names)
        expect(one_each, "similarity_settings", f"one for each of {', '.join(names)}", len(settings))
        expect([s.name for s in having] == names, "similarities", ", ".join(names), [s.name for s in having])
        for similarity, expected in zip(having, settings, strict=True):
            found = similarity.settings()
            require(
                found == expected,
                f"similarities: {similarity.name} was saved with {json.dumps(expected)}, and would be loaded with "
                f"{json.dumps(found)}; pass it as an object with the saved settings",
            )

    def _ballots(self, rows: Sequence[Any], name: str = "X") -> Ballots:
        """Return the checked answers, with errors that name the argument `name`."""
        with located(name):
            return ballots(rows, self.resolved(), self.accept)

    def _weights(self, prepared: Ballots) -> tuple[FloatArray, FloatArray]:
        """Return w^r [M] and w^s [S], the learned ones after a fit."""
        names, width, count = prepared.retrievers, prepared.width, prepared.similarity.shape[1]
        similarity: Any
        if hasattr(self, "retriever_weights_"):
            retriever = learned_weights(self.retriever_weights_, self.retrievers_, names, width)
            similarity = self.similarity_weights_
        else:
            retriever = given_weights(self.retriever_weights, names, width)
            similarity = np.ones(count) if self.similarity_weights is None else self.similarity_weights
        return retriever, nonnegative("similarity_weights", similarity, count)

    def _winners(self, prepared: Ballots) -> IntArray:
        return scoring.count(prepared, *self._weights(prepared), self._rules()).won


def saved_similarities(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the similarities in the values of `Voter.to_dict`.

    Raises:
        InputError: if the values are not a saved voter.
    """
    found = values.get("similarities")
    ok = isinstance(found, list) and isinstance(values.get("parameters"), dict)
    expect(ok, "Voter", "a saved voter with similarities and parameters", sorted(values))
    return tuple(map(str, found or ()))


def _shown(similarity: SimilarityLike) -> str:
    if isinstance(similarity, str):
        return similarity
    return similarity.name if isinstance(similarity, Similarity) else getattr(similarity, "__name__", repr(similarity))


def _correct(y: Any, prepared: Ballots) -> FloatArray:
    correct = np.asarray(accept_value("y", y, _NUMBERS), dtype=np.float64)
    shape = list(prepared.present.shape)
    finite = bool(np.isfinite(correct).all())
    expect(list(correct.shape) == shape, "y", f"correctness of each answer, {shape}", list(correct.shape))
    expect(finite, "y", "finite correctness of each answer, not NaN or infinite", y)
    return correct
