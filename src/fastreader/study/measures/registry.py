"""Measures by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from fastreader.core.checks import check_keys, located, require
from fastreader.data.fingerprints import digest
from fastreader.eor.similarity.loading import check_names
from fastreader.statistics.measures.answers import contained_words, rouge_l, short_answer_recall
from fastreader.statistics.measures.citations import citation_precision, citation_recall
from fastreader.study.measures import effects, judges
from fastreader.study.measures.case import Case, Load, Measure, citations, gold_cited, gold_read, one_by_one

PLAIN: dict[str, Callable[[Case], float | None]] = {
    "rouge_l": lambda case: rouge_l(case.answer, case.example.answers) if case.example.answers else None,
    "words": lambda case: contained_words(case.answer, case.example.answers) if case.example.answers else None,
    "short_answers": lambda case: short_answer_recall(case.answer, wanted) if (wanted := _short(case)) else None,
    "gold_read": gold_read,
    "gold_cited": gold_cited,
    "citation_precision": lambda case: citations(case, citation_precision),
    "citation_recall": lambda case: citations(case, citation_recall),
}
JUDGED: dict[str, tuple[str, Callable[..., Measure]]] = {
    "equivalent": ("equivalent", judges.equivalent),
    "preferred": ("preferred", judges.preferred),
    "citation_precision": ("citation", partial(judges.supported, citation_precision)),
    "citation_recall": ("citation", partial(judges.supported, citation_recall)),
}
"""Measures by a judge: the name of its prompt in `Study.judges`, and the function."""
EFFECTS: dict[str, Callable[[str, Load], Measure]] = {
    "order_range": effects.order_range,
    "order_changed": effects.order_changed,
    "distraction": effects.distraction,
}
READERS = ("preferred", "order_range", "order_changed", "distraction")  # measures that name a reader alone
NAMES = (
    *PLAIN,
    "equivalent:nli:MODEL",
    "equivalent:reader:NAME",
    "preferred:READER",
    "citation_precision:nli:MODEL",
    "citation_recall:reader:NAME",
    "order_range:READER",
    "order_changed:READER",
    "distraction:READER",
)


def check(names: Sequence[str]) -> None:
    """Check that each measure exists and that the model it names may, without loading it.

    Raises:
        InputError: naming the measure.
    """
    for name in names:
        kind, _, model = name.partition(":")
        known = name in PLAIN or (kind in {*JUDGED, *EFFECTS} and bool(model))
        if known and model and kind not in READERS:
            judge, _, rest = model.partition(":")
            known = judge in ("nli", "reader") and bool(rest)
            check_names([model] if known else [])
        require(known, f"measure: expected one of {', '.join(NAMES)}, got {name!r}")


def require_prompts(prompts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InputError unless `Study.judges` has known judgements with valid texts."""
    check_keys("judges", prompts, judges.JUDGES)
    for judgement in prompts:
        with located(f"judges.{judgement}"):
            judges.prompt_of(judgement, prompts)


def measure(name: str, load: Load, prompts: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> Measure:
    """Return a measure, which loads the model that it needs when it measures, with `Study.judges` as prompts."""
    kind, _, model = name.partition(":")
    if not model:
        return one_by_one(PLAIN[name])
    if kind in EFFECTS:
        return EFFECTS[kind](model, load)
    judgement, function = JUDGED[kind]
    return function(model, load, judges.prompt_of(judgement, prompts))


def prompt_digest(name: str, prompts: Mapping[str, Any]) -> str | None:
    """Return a digest of what `Study.judges` replaces in the prompt of a measure, or None."""
    kind, _, model = name.partition(":")
    replaced = prompts.get(JUDGED[kind][0]) if model and kind in JUDGED else None
    return digest(replaced) if replaced else None


def _short(case: Case) -> list[list[str]]:
    """Return the short answers that an answer must contain, each with its aliases: ASQA's `qa_pairs`."""
    pairs = case.example.metadata.get("qa_pairs")
    return [list(pair["short_answers"]) for pair in pairs] if isinstance(pairs, list) else []
