"""Methods by name, for `fastreader study` and `fastreader ask`."""

from __future__ import annotations

import difflib

from fastreader.core.checks import check_choice, expect, located
from fastreader.errors import InputError
from fastreader.study.config import MethodConfig, Study
from fastreader.study.measures import registry as measures
from fastreader.study.method import Family, StudyMethod
from fastreader.study.methods import eor, moi, noise, orders, reading, sure

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        reading.BASE,
        reading.CLOSED_BOOK,
        reading.RERANK,
        moi.MOI,
        moi.ORDER,
        reading.ARRANGE,
        orders.SELF_CONSISTENCY,
        orders.MARGINAL,
        sure.SURE,
        eor.EOR,
        noise.NOISE,
    )
}


WRITING = ("marginal", "sure", "eor", "noise")
"""Families that choose from no candidates of the study."""


def family_of(method: str) -> tuple[Family, str]:
    """Return the family and the variant of a method's name.

    Raises:
        InputError: if there is no such family.
    """
    name, _, variant = method.partition(":")
    if name not in FAMILIES:
        near = difflib.get_close_matches(method, names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"unknown method {method!r}{hint} There are: {', '.join(names())}")
    return FAMILIES[name], variant


def make(config: MethodConfig, study: Study) -> StudyMethod:
    """Create a method of a study.

    Raises:
        InputError: if there is no such method, or an option is unknown or invalid.
    """
    family, variant = family_of(config.method)
    choosing = not study.candidates or family.name not in WRITING
    expect(
        choosing, f"method {config.label!r}: candidates", "none, since the method writes its answers", study.candidates
    )
    if not family.parsed:
        check_choice("method", config.method, names(family))
    return family.make(variant, config.options, study)


def check(study: Study, where: str = "study") -> None:
    """Check that every method of a study exists and accepts its options.

    Args:
        study: the study.
        where: its place, which goes before the message.
    """
    with located(where):
        measures.check(study.measured, study.judges)
        for method in study.methods:
            make(method, study)


def names(*families: Family) -> list[str]:
    """Return all names of methods, of all families by default, those with a variant as NAME:VARIANT."""
    return [
        f"{family.name}:{variant}" if variant else family.name
        for family in families or FAMILIES.values()
        for variant in family.variants
    ]
