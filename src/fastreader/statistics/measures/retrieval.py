"""Measures of ranked passages whose relevance is known: nDCG, reciprocal rank, recall.

ir-measures (extra `measures`) computes the measures and names them: "nDCG@10", "RR" (its mean is MRR), "R@5",
"Success@5" (a relevant passage among the first five; "top-k accuracy" if relevant means containing an answer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_choice, expect, rejecting
from fastreader.data.types import Example
from fastreader.errors import FastreaderError, MissingExtraError

_NOBODYS = "\x00"  # no document's id: the run of a question without passages, since an empty run is left out
MEASURES = ("nDCG@10", "RR", "R@1", "R@5", "R@10", "R@20")


@dataclass(frozen=True)
class RetrievalMeasures:
    """Measures of the passages of several questions.

    Attributes:
        per_question: for each measure one value per question, in the given order.
        indices: indices of these questions among the examples.
        left_out: number of examples without relevance judgements.
    """

    per_question: dict[str, list[float]]
    indices: list[int]
    left_out: int

    @property
    def means(self) -> dict[str, float]:
        """Mean of each measure over the questions, if there are any."""
        return {name: sum(values) / len(values) for name, values in self.per_question.items() if values}

    def to_dict(self) -> dict[str, Any]:
        """Return means, values and counts as JSON values."""
        return {
            "means": self.means,
            "questions": len(self.indices),
            "left_out": self.left_out,
            "indices": self.indices,
            "per_question": self.per_question,
        }


def retrieval_measures(
    examples: Iterable[Example],
    measures: Sequence[str] = MEASURES,
    *,
    relevance: str = "gold",
    qrels: Mapping[str, Mapping[str, int]] | None = None,
) -> RetrievalMeasures:
    """Measure the passages of each example in their order.

    Args:
        examples: questions with their passages, best first.
        measures: names as ir-measures reads them.
        relevance: how to judge passages without `qrels`. "gold": by `is_gold`; if there are flags and none is true, the
            gold passage was not retrieved and every measure is 0. "answer": by `has_answer`; questions without a true
            flag get 0. Both assume that each question has one relevant passage if none was retrieved, and otherwise
            know only the retrieved ones: recall and the ideal of nDCG are over these.
        qrels: for each question's id the judged documents and their grades, as `load_qrels` reads them. Passages are
            looked up by id, and the measures agree with trec_eval: graded, over all relevant documents. Questions
            without a relevant document are left out, as in trec_eval.

    Raises:
        InputError: if a measure or `relevance` is unknown, `qrels` is malformed, or with `qrels` an example or passage
            has no id or repeats one.
        MissingExtraError: if ir-measures is not installed.
    """
    check_choice("relevance", relevance, ("gold", "answer"))
    library = _library()
    wanted = {name: _parse(library, name) for name in measures}
    if qrels is not None:
        _check_qrels(qrels)
    relevances: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    indices, left_out = [], 0
    for i, example in enumerate(examples):
        if qrels is not None:
            _check_ids(i, example)
            judged = dict(qrels.get(str(example.id), {}))
            ids = [str(p.id) for p in example.passages] or [_NOBODYS]
            judgeable = any(grade > 0 for grade in judged.values())
        else:
            flags = [p.is_gold if relevance == "gold" else p.has_answer for p in example.passages]
            # Places are used as ids, since ids may be missing or repeated. A passage that was not retrieved is added
            # if no other is relevant, because trec_eval leaves out questions without a relevant document.
            judged = {str(place): int(bool(flag)) for place, flag in enumerate(flags)}
            ids = list(judged)
            if not any(flags):
                judged["not retrieved"] = 1
            judgeable = any(flag is not None for flag in flags)
        if not judgeable:
            left_out += 1
            continue
        indices.append(i)
        relevances[str(i)] = judged
        run[str(i)] = {name: float(-place) for place, name in enumerate(ids)}
    found: dict[tuple[Any, int], float] = {}
    if indices:
        for metric in library.iter_calc(list(dict.fromkeys(wanted.values())), relevances, run):
            found[metric.measure, int(metric.query_id)] = float(metric.value)
    # Names of the same measure, such as "RR" and "MRR", share its values; a missing value is an error, not a 0.
    return RetrievalMeasures(
        {name: [_value(found, measure, name, i) for i in indices] for name, measure in wanted.items()},
        indices,
        left_out,
    )


def _check_qrels(qrels: Any) -> None:
    expect(isinstance(qrels, Mapping), "qrels", "grades by question and document", qrels)
    for question, judged in qrels.items():
        expect(isinstance(judged, Mapping), f"qrels[{question!r}]", "a grade for each document", judged)
        for document, grade in judged.items():
            integer = isinstance(grade, int) and not isinstance(grade, bool)
            expect(integer, f"qrels[{question!r}][{document!r}]", "an integer", grade)


def _check_ids(index: int, example: Example) -> None:
    expect(example.id is not None, f"examples[{index}]", "an id to look up in qrels", None)
    seen: set[str | None] = {None}
    for place, passage in enumerate(example.passages):
        name = f"examples[{index}]: passages[{place}]"
        expect(passage.id not in seen, name, "its own id to look up in qrels", passage.id)
        seen.add(passage.id)


def _value(found: dict[tuple[Any, int], float], measure: Any, name: str, index: int) -> float:
    if (measure, index) not in found:
        raise FastreaderError(f"retrieval_measures: ir-measures gave no {name} for examples[{index}]")
    return found[measure, index]


def _library() -> Any:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtraError("ir-measures", "measures") from error
    return ir_measures


def _parse(library: Any, name: str) -> Any:
    expected = f"names of ir-measures, such as {', '.join(MEASURES)}"
    with rejecting(f"measures: expected {expected}, got {name!r}", NameError, ValueError, SyntaxError):
        return library.parse_measure(name)
