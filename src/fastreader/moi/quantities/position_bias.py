"""PositionBias: the weight of each place for a reader, and the checks that a measurement fits its use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_number, expect, require
from fastreader.core.drawing import COLOURS, new_figure
from fastreader.core.lazy import cached_property
from fastreader.data.fingerprints import NOT_READ
from fastreader.data.record import SavedRecord
from fastreader.moi.quantities.observations import KINDS, FloatArray, finite
from fastreader.moi.quantities.score_noise import Noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS = ("query_likelihood", "gold_probe", "undetermined")


@checked
@dataclass(frozen=True, eq=False)
class PositionBias(SavedRecord):
    """The weight of each place, for one reader, template, number of passages and kind of score.

    The model is ``s_i = c + sum_j bias[j] v[pi_i[j]] + e``, ``v ~ N(beta z, tau^2)``, ``e ~ N(0, sigma^2)``, z the
    centred query likelihood; `df` and `shared` say how the noise e departs from that (`score_noise`). `bias` has unit
    norm. For whole orderings (L = N) its entries sum to zero, since a constant bias would shift all scores alike; for
    prefixes (L < N) they are free.

    Attributes:
        bias: float64 [L], unit norm: the weight of each place.
        beta: nats of utility for one nat of query likelihood; 0 if no query likelihoods were given.
        tau: standard deviation of the utilities around ``beta z``, nats.
        sigma: scale of a score around the model, nats: its standard deviation under one scale of all questions.
        num_passages: N.
        sign: the evidence for the bias's sign: "query_likelihood" (beta > 0: a passage under which the question is
            likelier has the larger utility; for prefixes without query likelihoods the sum of `bias` is positive),
            "gold_probe" (a known gold passage moved through the places), or "undetermined": `bias` may be its own
            negative, and only matched order is meaningful.
        intervals: float64 [L, 2] of `bias`, by bootstrap over the questions.
        covariance: float64 [L, L] of `bias`, by the same bootstrap.
        r2: share of the variance of held-out orderings' scores explained, against a mean without any bias.
        num_questions: number of questions measured.
        num_orderings: number of orderings scored, over all questions.
        reader: the scoring reader, as `Reader.describe` returns it.
        template: digest of the prompt's texts.
        kind, per_token: the score, as in `Observations`.
        confidence_level: of the intervals.
        inflation: factor on a posterior variance that makes it agree with held-out orderings; at least 1.
        temperature: p_best is raised to 1/temperature, so that it estimates how often a passage is the gold one;
            measured if gold passages were given (from N orderings a question), else 1.
        sign_z: beta over its standard error; None without query likelihoods.
        contrast_z: the gold contrast over its standard error, in the direction of `bias`; None without one.
        flat: whether held-out orderings show no bias beyond chance; utilities then mean nothing.
        identified: whether the scores determine `bias` up to its sign.
        reason: the problem if `flat`, not `identified`, or of undetermined sign; else empty.
        df: degrees of freedom of a question's noise scale, nu of `score_noise`; None for one scale of all questions.
        shared: float64 [L], correlation of the noises of two orderings that share their first k places, k = 0 to L - 1;
            None for independent noise.
        measured_on: anything else to record about the measurement, as JSON values.

    Raises:
        InputError: if a value is out of range or not finite, or shapes do not fit.
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
    df: float | None = None
    shared: FloatArray | None = None
    measured_on: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = len(np.atleast_1d(self.bias))
        for name, shape in (("bias", (places,)), ("intervals", (places, 2)), ("covariance", (places, places))):
            object.__setattr__(self, name, finite(f"PositionBias.{name}", getattr(self, name), shape))
        expect(1 <= places <= self.num_passages, "PositionBias.bias", f"1 to {self.num_passages} places", places)
        check_choice("PositionBias.sign", self.sign, SIGNS)
        check_choice("PositionBias.kind", self.kind, KINDS)
        check_number("PositionBias.beta", self.beta)
        check_number("PositionBias.tau", self.tau, minimum=0)
        check_number("PositionBias.sigma", self.sigma, minimum=0)
        check_number("PositionBias.df", self.df, above=0, optional=True)
        if self.shared is not None:
            shared = finite("PositionBias.shared", self.shared, (places,))
            object.__setattr__(self, "shared", shared)
            expect(bool((np.abs(shared) < 1).all()), "PositionBias.shared", "correlations between -1 and 1", shared)

    @property
    def noise(self) -> Noise:
        """The noise of a question's scores."""
        return Noise(float("inf") if self.df is None else self.df, self.shared)

    @cached_property
    def length(self) -> int:
        """Number of places L."""
        return len(self.bias)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the bias by place with its intervals as a matplotlib figure.

        Args:
            path: also write the figure to this file.

        Raises:
            MissingExtraError: if matplotlib is not installed (the extra "plot").
        """
        figure = new_figure(max(3.2, 0.45 * self.length + 1.6), 2.8)
        axes = figure.subplots()
        places = np.arange(1, self.length + 1)
        below, above = self.bias - self.intervals[:, 0], self.intervals[:, 1] - self.bias
        axes.axhline(0.0, color="0.7", linewidth=0.8)
        axes.errorbar(places, self.bias, yerr=np.maximum([below, above], 0.0), fmt="o-", capsize=3, color=COLOURS[0])
        axes.set_xticks(places)
        axes.set_xlabel("place in reading order")
        axes.set_ylabel("position bias (unit norm)")
        name = self.reader.get("name", "unknown reader")
        axes.set_title(
            f"{name}, N = {self.num_passages}, {self.num_questions} questions\n"
            f"held-out R² {self.r2:.2f}, sign: {self.sign}",
            fontsize=9,
        )
        if path is not None:
            figure.savefig(path)
        return figure


def check_bias(
    bias: PositionBias, passages: int, length: int, reader: Mapping[str, str], template: str, **scored: object
) -> None:
    """Check that a bias was measured on the same as the scores it is used with.

    Args:
        bias: the calibration.
        passages, length, reader, template: N, L, reader and template of the scores.
        **scored: `kind` and `per_token` of the scores; those left out are not compared.
    """
    pairs: dict[str, tuple[object, object]] = {
        "passages N": (bias.num_passages, passages),
        "places L": (bias.length, length),
        **{name: (getattr(bias, name), value) for name, value in scored.items()},
    }
    wrong = [f"{name}: bias {a!r}, scores {b!r}" for name, (a, b) in pairs.items() if a != b]
    wrong += differing("bias", bias.reader, bias.template, "scores", reader, template)
    require(not wrong, f"bias: measured on something else than these scores: {'; '.join(wrong)}")


def differing(
    ours: str, reader: Mapping[str, str], template: str, theirs: str, other: Mapping[str, str], other_template: str
) -> list[str]:
    """Return the differences in reader and template, both sides named, unless names and digests are empty.

    Readers of one revision are the same, whatever their names; one that was not read may be any. A packaged model has
    no revision, so a reader of the same name with a revision differs from it.

    >>> differing("bias", {"name": "a"}, "t", "scores", {"name": "b"}, "t")
    ["reader: bias 'a', scores 'b'"]
    >>> differing("bias", {"name": "a"}, "t", "scores", {"name": "a", "revision": "0a1b"}, "t")
    ["the reader's revision: bias '', scores '0a1b'"]
    """
    name, other_name = reader.get("name", ""), other.get("name", "")
    revision, other_revision = reader.get("revision", ""), other.get("revision", "")
    pairs = []
    if NOT_READ in (revision, other_revision):
        pass  # a dry run cannot tell
    elif not revision or revision != other_revision:
        pairs.append(("reader", name, other_name, bool(name and other_name)))
        known = bool(revision and other_revision) or name == other_name != ""
        pairs.append(("the reader's revision", revision, other_revision, known))
    pairs.insert(1, ("template", template, other_template, bool(template and other_template)))
    return [f"{what}: {ours} {a!r}, {theirs} {b!r}" for what, a, b, known in pairs if known and a != b]
