"""How well passages are ranked, where it is known which are relevant: nDCG, reciprocal rank, recall.

The measures are computed by ir-measures (extra `measures`), whose names they go by: "nDCG@10", "RR" (its mean is MRR),
"R@5", "Success@5" (a relevant one among the first five; "top-k accuracy" where relevant means having an answer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.data.types import Example
from fastreader.errors import FastreaderError, InputError, MissingExtraError

_NOBODYS = "\x00"  # no document's id: the run of a question without passages, since one that is empty is left out
MEASURES = ("nDCG@10", "RR", "R@1", "R@5", "R@10", "R@20")


@dataclass(frozen=True)
class RetrievalMeasures:
    """Measures of many questions' passages.

    Attributes:
        per_question: for each measure one value a question, in the order given.
        indices: which of the examples given these are.
        left_out: examples where nobody said which passages are relevant.
    """

    per_question: dict[str, list[float]]
    indices: list[int]
    left_out: int

    @property
    def means(self) -> dict[str, float]:
        """Mean of each measure over the questions; empty where there is none."""
        return {name: sum(values) / len(values) for name, values in self.per_question.items() if values}

    def to_dict(self) -> dict[str, Any]:
        """Means, values and counts as JSON values."""
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
    """Measure the passages of each example in the order they stand.

    Args:
        examples: questions with their passages, the best first.
        measures: names as ir-measures reads them.
        relevance: what is told from the passages alone, where there are no `qrels`. "gold": a passage is relevant by
            its `is_gold`; where flags are there and none is true the gold passage was not retrieved, and every
            measure is 0. "answer": by `has_answer`, and questions without any are 0. Relevant passages that were not
            retrieved are unknown to both, unless there is one a question: recall is over those among the passages,
            and so is the ideal of nDCG.
        qrels: for each question's id the documents judged and their grades, as `load_qrels` reads them. Passages go
            by their id, and the measures are trec_eval's: over all relevant documents, graded. Questions without a
            relevant one are left out, as there.

    Raises:
        InputError: an unknown measure or relevance; `qrels` that are none; with `qrels` an example or passage without
            an id, or an id that comes twice.
        MissingExtraError: ir-measures is not installed.
    """
    if relevance not in ("gold", "answer"):
        raise InputError(f"retrieval_measures: relevance must be 'gold' or 'answer', got {relevance!r}")
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
            judged = {} if example.id is None else qrels.get(example.id, {})
            if not any(grade > 0 for grade in judged.values()):
                left_out += 1
                continue
            indices.append(i)
            relevances[str(i)] = dict(judged)
            run[str(i)] = {str(p.id): float(-place) for place, p in enumerate(example.passages)} or {_NOBODYS: 0.0}
            continue
        flags = [p.is_gold if relevance == "gold" else p.has_answer for p in example.passages]
        if all(flag is None for flag in flags):
            left_out += 1
            continue
        indices.append(i)
        # Places stand for the passages, since identifiers may be missing or repeated. Without a relevant passage the
        # one that was not retrieved stands for it: trec_eval leaves out questions that have none.
        relevances[str(i)] = {str(place): int(bool(flag)) for place, flag in enumerate(flags)}
        if not any(flags):
            relevances[str(i)]["not retrieved"] = 1
        run[str(i)] = {str(place): float(-place) for place in range(len(flags))}
    found: dict[tuple[Any, int], float] = {}
    if indices:
        for metric in library.iter_calc(list(dict.fromkeys(wanted.values())), relevances, run):
            found[metric.measure, int(metric.query_id)] = float(metric.value)
    # Names of the same measure, as "RR" and "MRR", share its values; one that is missing is an error, not a 0.
    return RetrievalMeasures(
        {name: [_value(found, measure, name, i) for i in indices] for name, measure in wanted.items()},
        indices,
        left_out,
    )


def _check_qrels(qrels: Any) -> None:
    if not isinstance(qrels, Mapping):
        raise InputError(f"retrieval_measures: qrels: expected grades by question and document, got {qrels!r:.60}")
    for question, judged in qrels.items():
        if not isinstance(judged, Mapping):
            raise InputError(
                f"retrieval_measures: qrels[{question!r}]: expected a grade for each document, got {judged!r:.60}"
            )
        for document, grade in judged.items():
            if isinstance(grade, bool) or not isinstance(grade, int):
                raise InputError(
                    f"retrieval_measures: qrels[{question!r}][{document!r}]: expected a whole number, got {grade!r}"
                )


def _check_ids(index: int, example: Example) -> None:
    if example.id is None:
        raise InputError(f"retrieval_measures: examples[{index}]: expected an id to look up in qrels, got none")
    seen: set[str] = set()
    for place, passage in enumerate(example.passages):
        if passage.id is None or passage.id in seen:
            raise InputError(
                f"retrieval_measures: examples[{index}]: passages[{place}]: expected an id of its own to look up in "
                f"qrels, got {passage.id!r}"
            )
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
    try:
        return library.parse_measure(name)
    except (NameError, ValueError, SyntaxError) as error:
        raise InputError(
            f"retrieval_measures: {name!r} is no measure of ir-measures; for example {', '.join(MEASURES)}"
        ) from error
