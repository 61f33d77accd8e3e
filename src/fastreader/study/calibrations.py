"""Which calibrations MoI's methods of a study find by themselves: a run goes on only with those it began with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fastreader.errors import InputError
from fastreader.identity import reader_name
from fastreader.moi.shipped import at_hand
from fastreader.study.config import Study
from fastreader.study.methods.reading import template_of

CALIBRATIONS = "calibrations.json"
Found = Mapping[str, Mapping[str, str]]


def calibrations(study: Study) -> Found:
    """Of each reader, file name -> digest; nothing where every method is given its bias, or takes none."""
    if not _taken(study, "moi", "order"):
        return {}
    template = template_of(study).digest()
    return {reader: at_hand(reader_name(reader), template) for reader in study.readers}


def check_calibrations(folder: Path, study: Study, kept: Found | None, found: Found) -> None:
    """Refuse to go on where a calibration changed, or one came that MoI would take in place of random prefixes.

    Args:
        folder: of the run.
        study: that is to go on.
        kept: `calibrations` as the run began; None for one that kept none.
        found: those now.

    Raises:
        InputError: naming the calibration.
    """
    draws = _taken(study, "moi")
    for reader in sorted((kept or {}).keys() & found.keys()):
        before, now = (kept or {})[reader], found[reader]
        for name in sorted(before.keys() | now.keys()):
            if name not in before and not draws:
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
