"""A smaller agent: one reader has scored, another one answers, each with a position bias of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from fastreader.moi.identity import differing
from fastreader.moi.order import matched
from fastreader.moi.ranked import Ranked
from fastreader.moi.shipped import find
from fastreader.moi.types import PositionBias

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

Calibration: TypeAlias = tuple[PositionBias, str]  # and where it is from


def own_calibration(reader: Reader, template: Template | None, passages: int) -> Calibration | None:
    """The calibration at hand of the reader that answers, for as many passages as it reads.

    Raises:
        InputError: its file is damaged.
    """
    from fastreader.reader.prompts.template import as_template

    return find(reader.describe(), as_template(template).digest(), passages)


def placed_for(reader: Reader, ranked: Ranked, scorer: Reader, found: Calibration | None) -> Ranked:
    """The passages that `scorer` ranked, in matched order for the reader that answers; `note` says how.

    The largest utility goes where the answering reader's own bias is largest. Utilities and bias are then of two
    measurements, so the signs of both must be decided. Without such a calibration, or with one that is flat or not
    identified, the order is descending; where the
    sign of the scorer's bias is undetermined, its own matched order is all there is.

    Args:
        reader: answers.
        ranked: in matched order of the scorer's bias, or descending where the scorer has none.
        scorer: gave the utilities.
        found: `own_calibration` of the reader.
    """
    about = reader.describe(), scorer.describe()
    if ranked.utilities is None or not differing("", about[0], "", "", about[1], ""):
        return ranked
    names = about[0]["name"], about[1]["name"]
    if ranked.utilities.sign == "undetermined":
        return _noted(ranked, f"placed by the bias of {names[1]}, its sign undetermined, and not of {names[0]}")
    scored = len(ranked) - ranked.tail
    by_index = {p.index: p for p in ranked}
    if found is None or (why := _no_use(found[0])):
        what = "no calibration" if found is None else f"a calibration {why}"
        note = f"descending order: {names[0]}, which answers, has {what} for this template and N"
        order, indices = "descending", ranked.utilities.order("descending")
    else:
        note = f"placed by the {found[1]} calibration of {names[0]}, which answers"
        order, indices = "matched", matched(ranked.utilities.utility, found[0].bias)
    passages = [by_index[i] for i in indices.tolist()] + ranked.passages[scored:]
    return _noted(replace(ranked, passages=passages, order=order), note)


def _no_use(bias: PositionBias) -> str:
    """Why passages cannot be placed by a bias, in words; empty where they can."""
    if bias.flat:
        return "that found no bias to place by"
    if not bias.identified:
        return "that does not identify its bias"
    return "of undetermined sign" if bias.sign == "undetermined" else ""


def _noted(ranked: Ranked, note: str) -> Ranked:
    return replace(ranked, note="; ".join(filter(None, [ranked.note, note])))
