"""PositionBias: how much a passage's place counts for a reader."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.drawing import COLOURS, new_figure
from fastreader.errors import InputError
from fastreader.moi.arrays import KINDS, FloatArray, finite, to_dict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS = ("query_likelihood", "gold_probe", "undetermined")


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
        num_passages: N.
        sign: what decided the bias's sign: "query_likelihood" (beta > 0: a passage under which the question is likelier
            has the larger utility; for prefixes without query likelihoods the sum of `bias` is positive), "gold_probe"
            (a known gold passage moved through the places), or "undetermined": `bias` may be its own negative, and
            only matched order is meaningful.
        intervals: float64 [L, 2] of `bias`, by bootstrap over the questions.
        covariance: float64 [L, L] of `bias`, by the same bootstrap.
        r2: share of the variance of held-out orderings' scores explained, against a mean without any bias.
        num_questions: how many it was measured on.
        num_orderings: orderings scored, over all questions.
        reader: what scored them, as `Reader.describe` says.
        template: digest of the prompt's texts.
        kind, per_token: what was scored, as in `Observations`.
        confidence_level: of the intervals.
        inflation: by how much a posterior variance is multiplied so that it fits what held-out orderings show; at
            least 1.
        temperature: p_best is raised to 1/temperature, so that it says how often a passage is the gold one; measured
            where gold passages were given (from N orderings a question), else 1.
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
    num_passages: int
    sign: str
    intervals: FloatArray
    covariance: FloatArray
    r2: float
    num_questions: int
    num_orderings: int
    reader: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    kind: str = "question"
    per_token: bool = False
    confidence_level: float = 0.95
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
            object.__setattr__(self, name, finite(f"PositionBias.{name}", getattr(self, name), shape))
        if not 1 <= places <= self.num_passages:
            raise InputError(f"PositionBias.bias: expected 1 to {self.num_passages} places, got {places}")
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
        return to_dict(self)

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

        return plot_bias(self, path)


def check_position_bias(bias: object) -> None:
    """Refuse what is no calibration.

    Raises:
        InputError: saying what came.
    """
    if not isinstance(bias, PositionBias):
        raise InputError(
            "bias: expected a PositionBias (from moi.calibrate, or PositionBias.load of a file), got "
            f"{type(bias).__name__}"
        )


def plot_bias(bias: PositionBias, path: str | os.PathLike[str] | None = None) -> Figure:
    """The bias by place with its intervals; writes it to `path` when given.

    Raises:
        MissingExtraError: matplotlib is not installed (the extra "plot").
    """
    figure = new_figure(max(3.2, 0.45 * bias.length + 1.6), 2.8)
    axes = figure.subplots()
    places = np.arange(1, bias.length + 1)
    below, above = bias.bias - bias.intervals[:, 0], bias.intervals[:, 1] - bias.bias
    axes.axhline(0.0, color="0.7", linewidth=0.8)
    axes.errorbar(places, bias.bias, yerr=np.maximum([below, above], 0.0), fmt="o-", capsize=3, color=COLOURS[0])
    axes.set_xticks(places)
    axes.set_xlabel("place in reading order")
    axes.set_ylabel("position bias (unit norm)")
    name = bias.reader.get("name", "unknown reader")
    axes.set_title(
        f"{name}, N = {bias.num_passages}, {bias.num_questions} questions\n"
        f"held-out R² {bias.r2:.2f}, sign: {bias.sign}",
        fontsize=9,
    )
    if path is not None:
        figure.savefig(path)
    return figure
