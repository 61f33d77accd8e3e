"""Arrange passages by any scores, the best where a reader's position bias is largest, without running the reader."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, SupportsFloat, TypeVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_int, check_list, check_text, expect, is_missing, require
from fastreader.core.protocol import ReaderProtocol
from fastreader.data.documents import as_passage
from fastreader.data.record import SavedRecord
from fastreader.moi.calibration.store import find, stamp
from fastreader.moi.quantities.observations import finite
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.utilities import matched
from fastreader.reader.prompts.template import Template, as_template

FloatArray = npt.NDArray[np.float64]
Item = TypeVar("Item")
MOST_PASSAGES = 100_000
MOST_CALIBRATED = 64  # lengths for which calibrations are looked up


@checked_methods
@dataclass(frozen=True, eq=False)
class Arranger(SavedRecord):
    """What the places of a prompt are worth to one reader, for any number of passages.

    The biases of calibrated lengths are kept. Between two of them the bias is interpolated: each is read at the
    relative place, 0 for the first and 1 for the last, scaled to unit norm, and both are mixed by the distance in
    length. Beyond them the nearest is stretched, which nothing has measured.

    Attributes:
        biases: by number of passages N, from 2, float64 [N]: the weight of each place.
        reader: as `Reader.describe` returns it; empty if unknown.
        template: digest of the prompt's texts.

    Raises:
        InputError: if there is no bias, or one is not N finite numbers.
    """

    biases: Mapping[int, Sequence[float] | FloatArray]
    reader: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    _known: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False)  # biases read so far, by N

    def __post_init__(self) -> None:
        listed = isinstance(self.biases, Mapping) and len(self.biases) > 0
        expect(listed, "biases", "at least one bias, by number of passages", self.biases)
        expect(isinstance(self.reader, Mapping), "reader", "a mapping, as Reader.describe returns it", self.reader)
        check_text("template", self.template, empty=True)
        for n in self.biases:
            check_int("biases: N", n, 2)
        kept: dict[int, FloatArray] = {}
        for n in sorted(self.biases):
            kept[n] = finite(f"biases[{n}]", self.biases[n], (n,))
        object.__setattr__(self, "biases", kept)

    def __repr__(self) -> str:
        return f"Arranger({self.reader.get('name', 'unknown reader')!r}, N = {', '.join(map(str, self.biases))})"

    @classmethod
    def of(cls, biases: Iterable[PositionBias]) -> Self:
        """Return the arranger of calibrations of one reader and template.

        Args:
            biases: of whole orderings, one for each number of passages, their signs decided.

        Raises:
            InputError: if a calibration cannot place scores from outside, or two belong to different readers.
        """
        found: dict[int, FloatArray] = {}
        first: PositionBias | None = None
        for bias in biases:
            why = _why_not(bias)
            require(not why, f"biases: the one for N = {bias.num_passages} cannot place scores: {why}")
            first = first or bias
            same = (first.reader.get("name"), first.template) == (bias.reader.get("name"), bias.template)
            require(same, "biases: expected one reader and template")
            expect(bias.num_passages not in found, "biases", "one for each N", bias.num_passages)
            found[bias.num_passages] = bias.bias
        expect(first is not None, "biases", "at least one calibration", found)
        assert first is not None
        return cls(found, dict(first.reader), first.template)

    @classmethod
    def for_reader(cls, reader: ReaderProtocol | str, template: Template | None = None) -> Arranger:
        """Return the arranger of the shipped and cached calibrations with a usable bias.

        Args:
            reader: a reader, or the name of one.
            template: the prompt's texts; the default ones if None.

        Raises:
            InputError: if it finds none.
        """
        about = {"name": reader} if isinstance(reader, str) else reader.describe()
        return _at_hand(about["name"], about.get("revision", ""), as_template(template).digest(), stamp())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from the result of `to_dict`, of an `Arranger` or a `PositionBias`.

        Raises:
            InputError: if it is neither.
        """
        return super().from_dict(values) if "biases" in values else cls.of([PositionBias.from_dict(values)])

    def bias(self, n: int) -> FloatArray:
        """Return the weight of each of n places: float64 [n], unit norm, sum 0 (0 for n = 1)."""
        check_int("n", n, 1, MOST_PASSAGES)
        known = self._known.get(int(n))
        if known is None:
            if len(self._known) >= MOST_CALIBRATED:
                self._known.clear()
            known = self._known[int(n)] = self._interpolated(int(n))
        return known.copy()

    def _interpolated(self, n: int) -> FloatArray:
        if n == 1:
            return np.zeros(1)
        lengths = list(self.biases)
        above = next((length for length in lengths if length >= n), lengths[-1])
        below = next((length for length in reversed(lengths) if length <= n), lengths[0])
        share = 0.0 if above == below else (n - below) / (above - below)
        return _unit((1 - share) * self._read_at(below, n) + share * self._read_at(above, n))

    def order(self, scores: npt.ArrayLike) -> list[int]:
        """Return the reading order of passages: indices into `scores`.

        Args:
            scores: float [N], larger is better, in any unit: only their order counts. Equal ones keep their order.

        Raises:
            InputError: if they are not finite numbers [N].
        """
        expect(getattr(scores, "ndim", 1) == 1 and hasattr(scores, "__len__"), "scores", "numbers [N]", scores)
        count = len(scores)  # type: ignore[arg-type]
        values = finite("scores", scores, (count,))
        if not count:
            return []
        found: list[int] = matched(values, self.bias(len(values))).tolist()
        return found

    def _read_at(self, length: int, n: int) -> FloatArray:
        """Return the bias of a calibrated length, read at n relative places."""
        values = np.asarray(self.biases[length])
        return _unit(np.interp(np.linspace(0, 1, n), np.linspace(0, 1, length), values))


@checked
def arrange(
    passages: Iterable[Item],
    bias: Arranger | PositionBias | ReaderProtocol | str | os.PathLike[str],
    scores: npt.ArrayLike | None = None,
) -> list[Item]:
    """Return passages in the order in which to read them: the better, the larger the bias of the place.

    The sum of bias times score is largest in this order (rearrangement inequality). It costs no token of a reader.

    Args:
        passages: texts, `Passage`s, mappings or documents of other libraries; they are returned as they are.
        bias: an `Arranger`; a calibration, which serves any number of passages by interpolation; the file of either; a
            reader, or the name of one that has calibrations.
        scores: one for each passage, larger is better. None takes the passages' own scores; passages without one come
            last, with a warning, and if no passage has one, their order counts, best first.

    Raises:
        InputError: if there are not as many scores as passages, or the bias cannot place scores from outside: its sign
            is undetermined, or it is flat.
    """
    check_list("passages", passages)
    items = list(passages)
    arranger = _arranger(bias)
    if scores is None:
        given = [as_passage(item, name=f"passages[{i}]").score for i, item in enumerate(items)]
        scores = scores_or_last("passages", given)
    values = finite("scores", scores, (len(items),))
    return [items[i] for i in arranger.order(values)]


def _arranger(bias: Any) -> Arranger:
    if isinstance(bias, Arranger):
        return bias
    if isinstance(bias, PositionBias):
        return Arranger.of([bias])
    if isinstance(bias, (str, os.PathLike)):
        if Path(bias).is_file():
            return Arranger.load(bias)
        expect(isinstance(bias, str), "bias", "a file that exists", bias)
    return Arranger.for_reader(bias)


@lru_cache(maxsize=64)
def _at_hand(name: str, revision: str, template: str, _stamp: tuple[tuple[str, int, int], ...]) -> Arranger:
    """Return the arranger of the available calibrations, looked up again once a file has come, changed or gone."""
    about = {"name": name, **({"revision": revision} if revision else {})}
    found = [find(about, template, n) for n in range(2, MOST_CALIBRATED + 1)]
    usable = [bias for bias, _ in filter(None, found) if not _why_not(bias)]
    require(
        bool(usable),
        f"reader: no calibration of {name!r} with this template can place passages; "
        "measure one with `fastreader calibrate`",
    )
    return Arranger.of(usable)


def scores_or_last(name: str, scores: Sequence[Any]) -> list[float]:
    """Return scores of which some may be missing, so that passages without one come last, in their order.

    Args:
        name: name of the passages' argument, for messages.
        scores: numbers; None and NaN are missing.

    Returns:
        The scores if none is missing, numbers that fall with the place if all are, and else numbers in the same order.

    Raises:
        InputError: if a score is no number.
    """
    missing = [is_missing(score) for score in scores]
    for i, score in enumerate(scores):
        number = isinstance(score, SupportsFloat) and not isinstance(score, bool)
        expect(missing[i] or number, f"{name}[{i}]: score", "a number or None", score)
    if not any(missing):
        return [float(score) for score in scores]
    if all(missing):
        return [-float(place) for place in range(len(scores))]
    warnings.warn(f"{name}: {sum(missing)} of {len(scores)} have no score and come last", stacklevel=4)
    known = sorted({float(score) for score, absent in zip(scores, missing, strict=True) if not absent})
    return [-1.0 - i if missing[i] else float(known.index(float(score))) for i, score in enumerate(scores)]


def _why_not(bias: PositionBias) -> str:
    """Return why a calibration cannot place scores that were not measured with it, or "" if it can."""
    if bias.length != bias.num_passages or bias.num_passages < 2:
        return "it is not of whole orderings"
    if bias.flat:
        return "it found no bias"
    return "its sign is undetermined" if bias.sign == "undetermined" or not bias.identified else ""


def _unit(values: FloatArray) -> FloatArray:
    centred = values - values.mean()
    norm = float(np.linalg.norm(centred))
    unit: FloatArray = centred / norm if norm else centred
    return unit
