"""Recognise the format of a row by its keys, and convert the row to an Example.

Each format is a model of its keys (`retrieved`, `data_sets`, `natural_questions`) and an entry in `FORMATS`. Keys that
a format does not know go to `metadata` under their own names; those one level down (FlashRAG's `output`, rank_llm's
`query` and `doc`) stay one level down, so that no two can collide. Identifiers become strings, scores floats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fastreader.core.checks import given, is_missing
from fastreader.data.answers import ANSWER_KEYS, reject_lost_answers
from fastreader.data.formats import data_sets, natural_questions, retrieved
from fastreader.data.rows import check, describe
from fastreader.data.types import Example
from fastreader.errors import InputError


@dataclass(frozen=True)
class RowFormat:
    """A format of rows.

    Attributes:
        name: name of the format, for messages.
        marks: keys by which a row is recognised, each with the types of its value; all must be present.
        model: checks a row and converts it by ``example()``.
    """

    name: str
    marks: Mapping[str, type | tuple[type, ...]]
    model: Any

    @property
    def dropped(self) -> dict[str, str]:
        """Keys that are not kept, and why."""
        return dict(getattr(self.model, "dropped", {}))


_QUESTION: Mapping[str, type] = {"question": object}
FORMATS = (  # the first whose marks a row has is its format
    RowFormat("Lost in the Middle and DPR", {**_QUESTION, "ctxs": object}, retrieved.DprRow),
    RowFormat("FlashRAG", {**_QUESTION, "output": Mapping}, retrieved.FlashRow),
    RowFormat("rank_llm", {"query": object, "candidates": object}, retrieved.RankRow),
    RowFormat("fastreader rerank", {**_QUESTION, "results": object}, retrieved.RankedRow),
    RowFormat("MS MARCO", {"query": object, "passages": object}, data_sets.MarcoRow),
    RowFormat("Natural Questions on the hub", {"question": Mapping, "document": Mapping}, natural_questions.HubNqRow),
    RowFormat(
        "Natural Questions", {"question_text": object, "document_text": object}, natural_questions.SimplifiedNqRow
    ),
    RowFormat(
        "Natural Questions as published",
        {"question_text": object, "document_tokens": object},
        natural_questions.OriginalNqRow,
    ),
    RowFormat("HotpotQA and 2WikiMultihopQA", {**_QUESTION, "context": (list, Mapping)}, data_sets.HotpotRow),
    RowFormat(
        "HotpotQA and 2WikiMultihopQA", {**_QUESTION, "context": str, "supporting_facts": object}, data_sets.HotpotRow
    ),
    RowFormat("SQuAD", {**_QUESTION, "context": str}, data_sets.SquadRow),
    RowFormat("MuSiQue", {**_QUESTION, "paragraphs": object}, data_sets.MusiqueRow),
    RowFormat("CRAG", {"query": object, "search_results": object}, data_sets.CragRow),
    RowFormat("RGB", {"query": object, "positive": object}, data_sets.RgbRow),
    RowFormat("FEVER", {"claim": object}, data_sets.FeverRow),
    RowFormat("KILT", {"input": object, "output": list}, data_sets.KiltRow),
    RowFormat("SuRe and pyserini", {**_QUESTION, "contexts": object}, retrieved.ContextsRow),
    RowFormat("ragas", {"user_input": object, "retrieved_contexts": object}, retrieved.RagasRow),
    RowFormat("Bergen", {**_QUESTION, "documents": object}, retrieved.DocumentsRow),
    RowFormat("DPR's training files", {**_QUESTION, "positive_ctxs": object}, retrieved.RetrieverTrainingRow),
    RowFormat("ALCE", {**_QUESTION, "docs": object}, data_sets.AsqaRow),
    RowFormat("ASQA", {"ambiguous_question": object, "qa_pairs": object}, data_sets.AsqaRow),
    RowFormat("nq_open_gold", {**_QUESTION, "idx_gold_in_corpus": object}, data_sets.GoldRow),
    RowFormat("TriviaQA", {**_QUESTION, "entity_pages": object}, data_sets.TriviaRow),
    RowFormat("TriviaQA", {"Question": object, "Answer": object}, data_sets.TriviaRow),
    RowFormat("TriviaQA", {"Question": object, "QuestionId": object}, data_sets.TriviaRow),
)
PLAIN = RowFormat("questions without passages", {}, data_sets.PlainRow)
_EXPECTED = (
    "question and ctxs (Lost in the Middle, DPR), question and output.retrieval_result (FlashRAG), "
    "query and candidates (rank_llm), question and results (fastreader rerank), a data set's own "
    "(MS MARCO, HotpotQA, CRAG, ...), or question and answers without passages"
)


def dropped_keys(names: Collection[str]) -> dict[str, str]:
    """Return the keys that formats of these names do not keep, and why."""
    return {key: why for known in FORMATS if known.name in names for key, why in known.dropped.items()}


def find_format(row: Mapping[str, Any]) -> RowFormat | None:
    """Return the format of a row, or None if its keys are of none."""
    for known in FORMATS:
        if all(key in row and isinstance(row[key], kind) for key, kind in known.marks.items()):
            return known
    asks = "question" in row or "query" in row
    return PLAIN if asks and any(not is_missing(row.get(key)) for key in ANSWER_KEYS) else None


def parse_named(row: object) -> tuple[str, Example]:
    """Return the name of a decoded row's format, and the row as an Example.

    Raises:
        InputError: as `parse_row`.
    """
    values = given(row if isinstance(row, dict) else None, f"expected an object, got {describe(row)}")
    known = find_format(values) or _nearest(values)
    try:
        example: Example = check(known.model, values).example()
        reject_lost_answers(values, example.answers)
    except InputError as error:
        raise InputError(f"{error} (read as {known.name})") from None
    return known.name, example


def parse_row(row: object) -> Example:
    """Return a decoded row as an Example, in the format that its keys determine.

    Raises:
        InputError: if the format is unknown, a key is missing, a value has another type, or an answer would be lost;
            the message names the place in the row, and the caller adds file and line.
    """
    return parse_named(row)[1]


def _nearest(row: Mapping[str, Any]) -> NoReturn:
    """Raise an InputError that names the nearest format, and the key that the row lacks for it."""
    near = max(FORMATS, key=lambda known: sum(key in row for key in known.marks) - 0.1 * len(known.marks))
    lacking = [key for key in near.marks if key not in row]
    wrong = [key for key, kind in near.marks.items() if key in row and not isinstance(row[key], kind)]
    if len(lacking) == len(near.marks):
        raise InputError(f"expected the keys {_EXPECTED}, got {describe(row)}")
    found = (
        f"missing key {lacking[0]!r}, got {describe(row)}" if lacking else f"{wrong[0]}: got {describe(row[wrong[0]])}"
    )
    raise InputError(f"{found}; the nearest format is {near.name} ({', '.join(near.marks)}); the keys are {_EXPECTED}")
