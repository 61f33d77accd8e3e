"""Measures by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from fastreader.core.checks import check_keys, expect, located
from fastreader.data.answers import answer_texts
from fastreader.data.fingerprints import digest
from fastreader.eor.similarity.loading import check_names, require_model_name
from fastreader.statistics.measures.answers import contained_words, rouge_l, short_answer_recall
from fastreader.statistics.measures.citations import (
    citation_false_negatives,
    citation_false_positives,
    citation_precision,
    citation_recall,
)
from fastreader.study.measures import effects, grades, judges
from fastreader.study.measures.case import Case, Load, Measure, citations, gold_cited, gold_read, one_by_one

_CITATIONS: dict[str, Callable[..., float | None]] = {
    "citation_precision": citation_precision,
    "citation_recall": citation_recall,
    "citation_false_positives": citation_false_positives,
    "citation_false_negatives": citation_false_negatives,
}
PLAIN: dict[str, Callable[[Case], float | None]] = {
    "rouge_l": lambda case: rouge_l(case.answer, references) if (references := _references(case)) else None,
    "words": lambda case: contained_words(case.answer, case.example.answers) if case.example.answers else None,
    "short_answers": lambda case: short_answer_recall(case.answer, wanted) if (wanted := _short(case)) else None,
    "gold_read": gold_read,
    "gold_cited": gold_cited,
    **{name: partial(citations, count=count) for name, count in _CITATIONS.items()},
}
JUDGED: dict[str, tuple[str, Callable[..., Measure]]] = {
    "equivalent": ("equivalent", judges.equivalent),
    "preferred": ("preferred", judges.preferred),
    "llm_accuracy": ("grade", grades.llm_accuracy),
    "crag": ("grade", grades.crag),
    "crag_grades": ("grade", grades.crag_grades),
    **{name: ("citation", partial(judges.supported, count)) for name, count in _CITATIONS.items()},
}
"""Measures by a judge: the name of its prompt in `Study.judges`, and the function."""
EFFECTS: dict[str, Callable[[str, Load], Measure]] = {
    "order_range": effects.order_range,
    "order_changed": effects.order_changed,
    "distraction": effects.distraction,
}
GRADES = ("llm_accuracy", "crag", "crag_grades")
READERS = (*GRADES, "preferred", *EFFECTS)  # measures that name a reader alone
NAMES = (
    *PLAIN,
    "equivalent:bem:MODEL",
    "equivalent:nli:MODEL",
    "equivalent:reader:NAME",
    *(f"{name}:READER" for name in GRADES),
    "preferred:READER",
    *(f"{name}:{judge}" for name in _CITATIONS for judge in ("nli:MODEL", "reader:NAME")),
    "order_range:READER",
    "order_changed:READER",
    "distraction:READER",
)


def check(names: Sequence[str], prompts: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that each measure exists and that the model it names may, without loading it, and the judges' prompts.

    Raises:
        InputError: naming the measure or the text.
    """
    check_keys("judges", prompts, judges.JUDGES)
    for judgement in prompts:
        with located(f"judges.{judgement}"):
            judges.prompt_of(judgement, prompts)
    for name in names:
        wanted = f"one of {', '.join(NAMES)}; a metric may also be em, f1 or contained"
        expect(_exists(name), "metric or measure", wanted, name)


def _exists(name: str) -> bool:
    """Return whether there is a measure of this name, whose model may exist.

    Raises:
        InputError: if no model can have the name that a classifier is given.
    """
    kind, _, model = name.partition(":")
    if kind in READERS or not model:
        return bool(model) or name in PLAIN
    judge, _, rest = model.partition(":")
    if kind not in JUDGED or not rest:
        return False
    if judge == "nli":
        check_names([model])
    elif judge == "bem":
        require_model_name(model, rest, "a folder of a classifier, or a hub id")
    return judge in ("nli", "reader") or (judge, kind) == ("bem", "equivalent")


def measure(name: str, load: Load, prompts: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> Measure:
    """Return a measure, which loads the model that it needs when it measures, with `Study.judges` as prompts."""
    kind, _, model = name.partition(":")
    if not model:
        return one_by_one(PLAIN[name])
    if kind in EFFECTS:
        return EFFECTS[kind](model, load)
    judgement, function = JUDGED[kind]
    return function(model, load, judges.prompt_of(judgement, prompts))


def basis_of(name: str, prompts: Mapping[str, Any], baseline: str | None) -> str | None:
    """Return a digest of what a measure rests on besides an answer and its question, or None if that is nothing.

    Args:
        name: of the measure.
        prompts: `Study.judges`, which replace parts of its prompt.
        baseline: the answer that it compares with, if it does.
    """
    kind, _, model = name.partition(":")
    replaced = prompts.get(JUDGED[kind][0]) if model and kind in JUDGED else None
    compared = [baseline] if kind == "preferred" else []
    return digest([replaced, *compared]) if replaced or compared else None


def _short(case: Case) -> list[list[str]]:
    """Return the short answers that an answer must contain, each with its aliases: ASQA's `qa_pairs`."""
    pairs = case.example.metadata.get("qa_pairs")
    held = [pair.get("short_answers") for pair in pairs if isinstance(pair, Mapping)] if isinstance(pairs, list) else []
    return [aliases for aliases in map(answer_texts, held) if aliases]


def _references(case: Case) -> list[str]:
    """Return what an answer is compared with word by word: ASQA's and ALCE's long answers, else the right answers."""
    metadata = case.example.metadata
    annotations = metadata.get("annotations")
    noted = [each.get("long_answer") for each in annotations] if isinstance(annotations, list) else []
    long = [text for text in (metadata.get("answer"), *noted) if isinstance(text, str) and text.strip()]
    return long if "qa_pairs" in metadata and long else case.example.answers
