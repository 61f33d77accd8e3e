"""A smaller agent: one reader has scored, another one answers, each with a position bias of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastreader.moi.order import matched
from fastreader.moi.ranked import Ranked
from fastreader.moi.shipped import find

if TYPE_CHECKING:
    from fastreader.prompts import Template
    from fastreader.reader import Reader


def placed_for(reader: Reader, ranked: Ranked, scorer: Reader, template: Template | None) -> Ranked:
    """The passages that `scorer` ranked in matched order, placed for the reader that answers; `note` says how.

    The largest utility goes where the answering reader's own bias is largest. Utilities and bias are then of two
    measurements, so the signs of both must be decided. Without such a calibration the order is descending; where the
    sign of the scorer's bias is undetermined, its own matched order is all there is.
    """
    from fastreader.prompts import Template

    names = reader.describe()["name"], scorer.describe()["name"]
    if ranked.order != "matched" or ranked.utilities is None or names[0] == names[1]:
        return ranked
    if ranked.utilities.sign == "undetermined":
        return _noted(ranked, f"placed by the bias of {names[1]}, its sign undetermined, and not of {names[0]}")
    scored = len(ranked) - ranked.tail
    found = find(names[0], (template or Template()).digest(), scored)
    by_index = {p.index: p for p in ranked}
    if found is None or found[0].sign == "undetermined":
        what = "no calibration" if found is None else "a calibration of undetermined sign"
        note = f"descending order: {names[0]}, which answers, has {what} for this template and N"
        order, indices = "descending", ranked.utilities.order("descending")
    else:
        note = f"placed by the {found[1]} calibration of {names[0]}, which answers"
        order, indices = "matched", matched(ranked.utilities.utility, found[0].bias)
    passages = [by_index[i] for i in indices.tolist()] + ranked.passages[scored:]
    return _noted(replace(ranked, passages=passages, order=order), note)


def _noted(ranked: Ranked, note: str) -> Ranked:
    return replace(ranked, note="; ".join(filter(None, [ranked.note, note])))
