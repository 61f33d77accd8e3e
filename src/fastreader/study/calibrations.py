"""Which calibrations MoI's methods of a study find by themselves: a run goes on only with those it began with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fastreader.errors import InputError
from fastreader.moi.shipped import at_hand
from fastreader.study.config import Study
from fastreader.study.methods.reading import template_of

CALIBRATIONS = "calibrations.json"
Found = dict[str, str]


def calibrations(study: Study, about: Mapping[str, str]) -> Found | None:
    """File name -> digest, of a reader as it describes itself; None where every method is given one or takes none."""
    return at_hand(about, template_of(study).digest()) if _taken(study, "moi", "order") else None


def check_calibrations(folder: Path, study: Study, reader: str, before: Found | None, now: Found) -> None:
    """Refuse to go on where a calibration changed, or one came that MoI would take in place of random prefixes.

    Args:
        folder: of the run.
        study: that is to go on.
        reader: its name in the study.
        before: `calibrations` when it gave its first answer; None where it gave none.
        now: those there are.

    Raises:
        InputError: naming the calibration.
    """
    if before is None:
        return
    for name in sorted(before.keys() | now.keys()):
        if name not in before and not _taken(study, "moi"):
            continue  # an order that lacked it has failed, and is made anew
        if before.get(name) != now.get(name):
            what = "came since" if name not in before else "is gone" if name not in now else "is another now"
            raise InputError(
                f"{folder}: holds a run of another study: the calibration {name} of {reader} {what}; name a new "
                "folder, or put it back as it was"
            )


def _taken(study: Study, *families: str) -> bool:
    """Whether a method of these families takes the calibration there is."""
    given = study.moi.get("bias")
    return any(
        method.method.partition(":")[0] in families and not (given or method.options.get("bias"))
        for method in study.methods
    )
