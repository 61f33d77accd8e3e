"""Methods by name."""

from __future__ import annotations

import difflib

from fastreader.errors import InputError
from fastreader.study.config import MethodConfig, Study
from fastreader.study.method import Family, StudyMethod
from fastreader.study.methods import eor, moi, noise, reading, sure

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (reading.BASE, reading.CLOSED_BOOK, moi.MOI, moi.ORDER, sure.SURE, eor.EOR, noise.NOISE)
}


def make(config: MethodConfig, study: Study) -> StudyMethod:
    """The method that a study names.

    Raises:
        InputError: there is none, or an option it does not take.
    """
    name, _, variant = config.method.partition(":")
    if name not in FAMILIES:
        near = difflib.get_close_matches(config.method, names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"unknown method {config.method!r}{hint} There are: {', '.join(names())}")
    return FAMILIES[name].make(variant, config.options, study)


def check(study: Study, where: str = "study") -> None:
    """Check that every method of a study exists and accepts its options.

    Raises:
        InputError: naming `where`, if a method is unknown, or an option is unknown or has an invalid value.
    """
    for method in study.methods:
        try:
            make(method, study)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


def names() -> list[str]:
    """All names, those with a variant as NAME:VARIANT."""
    found: list[str] = []
    for family in FAMILIES.values():
        variants = family.variants()
        found += [f"{family.name}:{variant}" if variant else family.name for variant in variants or [""]]
    return found
