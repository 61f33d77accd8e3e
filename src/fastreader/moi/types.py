"""What MoI reads and returns: observations, a position bias, utilities. NumPy only."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError
from fastreader.moi.order import descending, matched

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KINDS = ("question", "joint", "candidate")
SIGNS = ("convention", "contrast", "undetermined")
ORDERS = ("matched", "descending")


@dataclass(frozen=True, eq=False)
class Observations:
    """One question's scores under M orderings, as MoI's model explains them.

    Attributes:
        values: float64 [M], nats: s_i of ordering i.
        permutations: int64 [M, L], row i lists passage indices in reading order.
        passages: N, how many passages the question has; L <= N.
        kind: what was scored: "question" (log P(q | pi)), "joint" (log P(q | pi) + log P(pi)) or "candidate"
            (a candidate answer's log-likelihood).
        per_token: whether `values` are divided by the number of tokens scored.
        qg: float64 [N], the question's log-likelihood after each passage alone (query likelihood), in the unit of
            a question's `values`; None where it was not scored.
        reader: what scored them, as `Reader.describe` says.
        template: digest of the prompt's texts (`prompts.Template.digest`); "" where unknown.
        id: the question's identifier.
        truncated: tokens cut off each passage to fit the context; passages read whole are absent.

    Raises:
        InputError: shapes that do not fit, a value that is not finite, or an ordering that is none.
    """

    values: FloatArray
    permutations: IntArray
    passages: int
    kind: str = "question"
    per_token: bool = False
    qg: FloatArray | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    id: str | None = None
    truncated: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"Observations.kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        rows = np.asarray(self.permutations)
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or not rows.size:
            raise InputError(f"Observations.permutations: expected integers [M, L], got {rows.dtype} {rows.shape}")
        ordered = np.sort(rows, axis=1)
        if ordered[:, 0].min() < 0 or ordered[:, -1].max() >= self.passages or (np.diff(ordered, axis=1) == 0).any():
            raise InputError(
                f"Observations.permutations: expected each row to list distinct passages in [0, {self.passages})"
            )
        object.__setattr__(self, "permutations", rows.astype(np.int64))
        object.__setattr__(self, "values", _finite("Observations.values", self.values, (len(rows),)))
        if self.qg is not None:
            object.__setattr__(self, "qg", _finite("Observations.qg", self.qg, (self.passages,)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def length(self) -> int:
        """Places L of each ordering."""
        return int(self.permutations.shape[1])

    @property
    def constant(self) -> bool:
        """Whether all orderings scored the same, beyond rounding: nothing can be told from them."""
        spread = float(np.ptp(self.values))
        return spread <= 1e-9 * max(1.0, float(np.abs(self.values).max()))


@dataclass(frozen=True, eq=False)
class PositionBias:
    """How much a passage's place counts, for one reader, template, number of passages and kind of score.

    The model is ``s_i = c + sum_j bias[j] v[pi_i[j]] + e``, ``v ~ N(beta z, tau^2)``, ``e ~ N(0, sigma^2)``, z the
    centred query likelihood. `bias` has unit norm; its entries sum to zero where whole orderings were read (L = N;
    a constant bias would shift all scores alike), and are free for prefixes (L < N).

    Attributes:
        bias: float64 [L], unit norm: the weight of each place.
        beta: nats of utility for one nat of query likelihood; 0 where no query likelihoods were given.
        tau: standard deviation of the utilities around ``beta z``, nats.
        sigma: standard deviation of a score around the model, nats.
        passages: N.
        sign: what decided the bias's sign: "convention" (beta > 0: a passage under which the question is likelier
            has the larger utility), "contrast" (a known gold passage moved through the places), or
            "undetermined": `bias` may be its own negative, and only matched order is meaningful.
        intervals: float64 [L, 2] of `bias`, by bootstrap over the questions.
        covariance: float64 [L, L] of `bias`, by the same bootstrap.
        r2: share of the variance of held-out orderings' scores explained, against a mean without any bias.
        questions: how many it was measured on.
        permutations: orderings scored, over all questions.
        reader: what scored them, as `Reader.describe` says.
        template: digest of the prompt's texts.
        kind, per_token: what was scored, as in `Observations`.
        level: of the intervals.
        inflation: by how much a posterior variance is multiplied so that it fits what held-out halves show.
        temperature: p_best is raised to 1/temperature; measured where gold passages were given, else 1.
        sign_z: beta over its standard error; None without query likelihoods.
        contrast_z: the gold contrast over its standard error, in the direction of `bias`; None without one.
        flat: whether held-out orderings do not show a bias beyond chance; utilities then tell nothing.
        identified: whether the scores determine `bias` up to its sign.
        reason: what is wrong when `flat`, not `identified`, or of undetermined sign; else empty.
        measured_on: anything else to say about the measurement, as JSON values.
    """

    bias: FloatArray
    beta: float
    tau: float
    sigma: float
    passages: int
    sign: str
    intervals: FloatArray
    covariance: FloatArray
    r2: float
    questions: int
    permutations: int
    reader: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    kind: str = "question"
    per_token: bool = False
    level: float = 0.95
    inflation: float = 1.0
    temperature: float = 1.0
    sign_z: float | None = None
    contrast_z: float | None = None
    flat: bool = False
    identified: bool = True
    reason: str = ""
    measured_on: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = len(np.atleast_1d(self.bias))
        for name, shape in (("bias", (places,)), ("intervals", (places, 2)), ("covariance", (places, places))):
            object.__setattr__(self, name, _finite(f"PositionBias.{name}", getattr(self, name), shape))
        if not 1 <= places <= self.passages:
            raise InputError(f"PositionBias.bias: expected 1 to {self.passages} places, got {places}")
        if self.sign not in SIGNS:
            raise InputError(f"PositionBias.sign: expected one of {', '.join(SIGNS)}, got {self.sign!r}")
        if self.kind not in KINDS:
            raise InputError(f"PositionBias.kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        if not (self.tau >= 0 and self.sigma >= 0 and np.isfinite([self.beta, self.tau, self.sigma]).all()):
            raise InputError(
                "PositionBias: beta, tau and sigma must be finite, tau and sigma at least 0, "
                f"got {self.beta}, {self.tau}, {self.sigma}"
            )

    @property
    def length(self) -> int:
        """Places L."""
        return len(self.bias)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; `from_dict` gives it back exactly."""
        return _to_dict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PositionBias:
        """Rebuild from `to_dict`; keys that are not attributes are passed over.

        Raises:
            InputError: an attribute is missing or does not fit.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            return cls(**{k: v for k, v in values.items() if k in known})
        except (TypeError, ValueError) as error:
            raise InputError(f"PositionBias.from_dict: {error} in values with keys {sorted(values)}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, all of it or nothing."""
        target = Path(path)
        scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            scratch.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PositionBias:
        """Read what `save` wrote.

        Raises:
            InputError: no such file, or not such a file.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such file") from error
        except ValueError as error:
            raise InputError(f"{path}: not a position bias ({error})") from error
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The bias by place with its intervals, as a matplotlib figure; also written to `path` when given.

        Raises:
            MissingExtraError: matplotlib is not installed (the extra "plot").
        """
        from fastreader.moi.plot import plot_bias

        return plot_bias(self, path)


@dataclass(frozen=True, eq=False)
class Utilities:
    """One question's passages, freed of the places they were read at.

    Utilities are relative: they are nats against the mean of the question's passages (their sum is zero), for a
    place of unit weight.

    Attributes:
        utility: float64 [N], nats, in the retriever's order of the passages.
        covariance: float64 [N, N], posterior; zeros for method "joint", which gives no uncertainty.
        intervals: float64 [N, 2], posterior interval of each utility; equal to the utility for "joint".
        p_best: float64 [N], probability that a passage has the largest utility, sums to 1.
        residual: root mean square of what the model leaves of the scores, nats.
        rank: how many directions of utility the orderings determine; N - 1 is all.
        condition: largest over smallest singular value of those directions; inf where the rank falls short.
        identified: whether the scores determine the order of the utilities.
        reason: why not, or a caution; empty where all is well.
        flags: what was found, by name: "constant", "flat", "singular", "ambiguous", "sign", "uncovered".
        method: "calibrated" or "joint".
        bias: float64 [L], the position bias used, or found by "joint" (then it sums to 1).
        level: of the intervals.
        sign: of the position bias, as in `PositionBias`; "undetermined" for joint solves of whole orderings.
    """

    utility: FloatArray
    covariance: FloatArray
    intervals: FloatArray
    p_best: FloatArray
    residual: float
    rank: int
    condition: float
    identified: bool
    reason: str
    method: str
    bias: FloatArray
    flags: tuple[str, ...] = ()
    level: float = 0.95
    sign: str = "convention"

    def __len__(self) -> int:
        return len(self.utility)

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviation of each utility: float64 [N], nats."""
        deviation: FloatArray = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        return deviation

    @property
    def score(self) -> FloatArray:
        """Sigmoid of the utility: float64 [N] in (0, 1), for consumers that expect a bounded score."""
        return _sigmoid(self.utility)

    def order(self, kind: str = "matched") -> IntArray:
        """Passage indices in reading order; ties stay in the retriever's order.

        Args:
            kind: "matched" puts the largest utility at the place of the largest bias (see `order.matched`), which
                depends on neither sign nor size of the bias; "descending" reads the largest utility first.

        Raises:
            InputError: another kind; or "descending" of a calibrated bias whose sign is undetermined.
        """
        if kind == "matched":
            return matched(self.utility, self.bias)
        if kind != "descending":
            raise InputError(f"order: expected one of {', '.join(ORDERS)}, got {kind!r}")
        if self.method == "calibrated" and self.sign == "undetermined":
            raise InputError(
                "order: 'descending' needs the bias's sign, which is undetermined; use 'matched', or calibrate with "
                "query likelihoods or a gold contrast"
            )
        return descending(self.utility)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; an infinite condition is null."""
        return _to_dict(self)


def _to_dict(value: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        if isinstance(item, np.ndarray):
            item = item.tolist()
        elif isinstance(item, Mapping):
            item = dict(item)
        elif isinstance(item, tuple):
            item = list(item)
        elif isinstance(item, float) and not np.isfinite(item):
            item = None
        out[f.name] = item
    return out


def _finite(name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise InputError(f"{name}: expected shape {list(shape)}, got {list(array.shape)}")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0]
        raise InputError(f"{name}: expected finite numbers, got {array[tuple(where)]} at {where.tolist()}")
    array.setflags(write=False)
    return array


def _sigmoid(x: FloatArray) -> FloatArray:
    value: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * x))
    return value
