"""What a run records besides its answers: attention, contradictions, attributions, measures and fitted voters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from fastreader.core.checks import expect
from fastreader.core.halving import by_halves
from fastreader.core.progress import track
from fastreader.data import Example
from fastreader.data.result_log import ResultLog
from fastreader.eor.measures import correctness
from fastreader.eor.voter import Voter
from fastreader.errors import ContextOverflowError, InputError
from fastreader.noise.attention import AnswerAttention, layout_attention
from fastreader.noise.layouts import Layout
from fastreader.noise.prompt import NoiseTemplate
from fastreader.passages.attribution import attribute
from fastreader.passages.conflicts import conflicts
from fastreader.passages.conflicts.forms import different
from fastreader.reader.reader import Reader
from fastreader.scoring.marginal_answer import distinct
from fastreader.study.cached_reader import CachedReader
from fastreader.study.config import Study
from fastreader.study.folder import ATTENTION, ATTRIBUTION, CONFLICTS, MEASURES, VOTER, Baseline, RunFolder
from fastreader.study.measures.case import Case, Load
from fastreader.study.measures.registry import basis_of, measure
from fastreader.study.methods.eor import EorMethod, answers_of
from fastreader.study.methods.noise import NoiseMethod, layout_of
from fastreader.study.methods.reading import template_of
from fastreader.study.registry import make

COMPARED = "probabilities"  # in the keys of comparisons: rows of earlier versions hold scores in nats


def write_attention(
    study: Study, run: RunFolder, examples: Sequence[Example], name: str, reader: Callable[[], CachedReader]
) -> None:
    """Write the attention of each layout's answer for the first `study.noise.attention` questions, one row each.

    The answers and their passages are taken from the run's rows: laid out again, a study with more questions would
    draw other passages. A reply without a token gets a row with an error, and so does a reply whose last token, which
    is read here and was not when it was generated, no longer fits in the context. Layouts without passages have no row.
    `reader` returns the reader, and is not called if nothing is missing.
    """
    if not study.noise.attention:
        return
    missing = _MissingReplies(study, run, name)
    todo = [(e, traces) for e in examples[: study.noise.attention] if (traces := missing.of(e))]
    if not todo:
        return
    opened = reader().reader
    expect(isinstance(opened, Reader), "noise.attention", "a fastreader.Reader, whose attention can be seen", opened)
    assert isinstance(opened, Reader)
    with ResultLog(run.file(ATTENTION), resume=True) as log:
        for example, traces in todo:
            replies: dict[str, tuple[Layout, str]] = {}
            for label, trace in traces.items():
                if trace["reply"].strip():
                    replies[label] = layout_of(trace, example), trace["reply"]
                else:
                    log.append(*missing.row(example, label, "the reply is empty"))
            if not replies:
                continue
            template = missing.methods[next(iter(replies))].template
            for label, found in _attention(opened, example.question, replies, template, study.max_batch_tokens).items():
                log.append(*missing.row(example, label, found if isinstance(found, AnswerAttention) else str(found)))


def _attention(
    reader: Reader,
    question: str,
    replies: dict[str, tuple[Layout, str]],
    template: NoiseTemplate,
    max_batch_tokens: int | None,
) -> dict[str, AnswerAttention | ContextOverflowError]:
    """Return the attention of each layout's answer, or the error of an answer that is too long."""

    def attend(part: Sequence[tuple[str, tuple[Layout, str]]]) -> list[AnswerAttention]:
        options: dict[str, Any] = {"template": template, "max_batch_tokens": max_batch_tokens}
        return list(layout_attention(reader, question, dict(part), **options).values())

    return dict(zip(replies, by_halves(list(replies.items()), attend, ContextOverflowError), strict=True))


class _MissingReplies:
    """Replies whose attention is to be recorded and has no row yet."""

    def __init__(self, study: Study, run: RunFolder, reader: str) -> None:
        self._reader = reader
        chosen = study.noise.attention_layouts
        self.methods: dict[str, NoiseMethod] = {
            config.label: method
            for config in study.methods
            if isinstance(method := make(config, study), NoiseMethod) and (method.spec.gold or method.spec.retrieved)
            if not chosen or method.spec.name in chosen
        }
        self._traces: dict[tuple[str | None, str], dict[str, Any]] = {
            (row["question_id"], row["method"]): row["trace"]
            for row in run.rows()
            if row["reader"] == reader and row["seed"] == study.seeds[0] and row["answer"] is not None
            if row["method"] in self.methods
        }
        self._done = {row["id"] for row in run.attention()}

    def of(self, example: Example) -> dict[str, dict[str, Any]]:
        """Return the traces of a question's missing replies, by method."""
        return {
            label: self._traces[example.id, label]
            for label in self.methods
            if (example.id, label) in self._traces and self._key(example, label) not in self._done
        }

    def row(self, example: Example, label: str, found: AnswerAttention | str) -> tuple[str, dict[str, Any]]:
        """Return key and row of one reply, whose attention or error is `found`."""
        row = {
            "question_id": example.id,
            "method": label,
            "layout": self.methods[label].spec.name,
            "reader": self._reader,
            "error": found if isinstance(found, str) else None,
            "attention": None if isinstance(found, str) else found.to_dict(),
        }
        return self._key(example, label), row

    def _key(self, example: Example, label: str) -> str:
        return json.dumps([example.id, label, self._reader], ensure_ascii=False)


def write_conflicts(
    study: Study,
    run: RunFolder,
    examples: Sequence[Example],
    name: str,
    reader: Callable[[], CachedReader],
    progress: bool | None,
) -> bool:
    """Compare a question's passages over its distinct answers, all methods and seeds of a reader together.

    A question needs two passages and two distinct answers; each comparison is a row of conflicts.jsonl. Rows that the
    folder has are kept; a question with new answers, of methods added later, gets a new row, which replaces the old
    one. A passage too long for the context gives a row with an error.

    Args:
        study, run, examples: of the run, whose answers exist.
        name: the reader's name in the study.
        reader: returns the reader; not called if no comparison is missing.
        progress: show a bar on standard error; None shows it on a terminal.

    Returns:
        Whether the reader compared anything.

    Raises:
        InputError: if the reader does not score token ids.
    """
    if not study.conflicts:
        return False
    answers = _answers(run, name)
    with ResultLog(run.file(CONFLICTS), resume=True) as log:
        todo = []
        for example in examples:
            candidates = different(distinct(answers.get(str(example.id), []))[0])
            key = json.dumps([example.id, name, sorted(candidates), COMPARED], ensure_ascii=False)
            if len(candidates) > 1 and len(example.passages) > 1 and key not in log:
                todo.append((key, example, candidates))
        with track("comparing passages", len(todo), "questions", progress) as advance:
            for key, example, candidates in todo:
                row: dict[str, Any] = {"question_id": example.id, "reader": name, "conflicts": None, "error": None}
                try:
                    found = conflicts(reader().tree_reader(), example, None, candidates, template=template_of(study))
                    row["conflicts"] = found.to_dict()
                except ContextOverflowError as error:
                    row["error"] = str(error)
                log.append(key, row)
                advance(1)
    return bool(todo)


def _answers(run: RunFolder, name: str) -> dict[str, list[str]]:
    """Return the answers of all methods and seeds of a reader, by question."""
    answers: dict[str, list[str]] = {}
    for row in run.rows():
        if row["reader"] == name and row["answer"] is not None:
            answers.setdefault(row["question_id"], []).append(row["answer"])
    return answers


def write_attribution(
    study: Study,
    run: RunFolder,
    examples: Sequence[Example],
    name: str,
    reader: Callable[[], CachedReader],
    progress: bool | None,
) -> bool:
    """Attribute each distinct answer to the first `study.attribution` questions to all passages of its question.

    Rows that the folder has are kept. Passages too long for the context give a row with an error. Arguments and errors
    are the same as those that `write_conflicts` has.

    Returns:
        Whether the reader attributed anything.
    """
    if not study.attribution:
        return False
    answers = _answers(run, name)
    with ResultLog(run.file(ATTRIBUTION), resume=True) as log:
        todo = []
        for example in examples[: study.attribution]:
            for answer in dict.fromkeys(filter(str.strip, answers.get(str(example.id), []))):
                key = json.dumps([example.id, name, answer], ensure_ascii=False)
                if example.passages and key not in log:
                    todo.append((key, example, answer))
        with track("attributing answers", len(todo), "answers", progress) as advance:
            for key, example, answer in todo:
                row: dict[str, Any] = {"question_id": example.id, "reader": name, "answer": answer}
                row |= {"attribution": None, "error": None}
                try:
                    found = attribute(reader().tree_reader(), example, answer=answer, template=template_of(study))
                    row["attribution"] = found.to_dict()
                except ContextOverflowError as error:
                    row["error"] = str(error)
                log.append(key, row)
                advance(1)
    return bool(todo)


def write_measures(study: Study, run: RunFolder, examples: Sequence[Example], load: Load) -> None:
    """Write the study's further measures of all answers to measures.jsonl, except those that the file holds."""
    if not study.measured:
        return
    rows = [row for row in run.rows() if row["answer"] is not None]
    by_id = {example.id: example for example in examples}
    methods = {config.label: make(config, study) for config in study.methods}
    baseline = Baseline(study, rows)
    with ResultLog(run.file(MEASURES), resume=True) as log:
        for name in study.measured:
            todo = []
            for row in rows:
                texts = Counter(methods[row["method"]].measured(row["answer"], row["trace"]))
                basis = basis_of(name, study.judges, baseline.of(row))
                parts = [row["id"], name, *filter(None, [basis, "mean" if len(texts) > 1 else None])]
                key = json.dumps(parts, ensure_ascii=False)
                if key not in log:
                    example, own = by_id[row["question_id"]], row["trace"]
                    cases = [Case(example, text, own, baseline.of(row)) for text in texts]
                    todo.append((key, row, basis, cases, list(texts.values())))
            every = [case for _, _, _, cases, _ in todo for case in cases]
            values = iter(measure(name, load, study.judges)(every) if todo else [])
            for key, row, basis, cases, counts in todo:
                value = _mean(list(islice(values, len(cases))), counts)
                log.append(key, {"row": row["id"], "measure": name, "value": value, "basis": basis})


def _mean(values: Sequence[float | None], counts: Sequence[int]) -> float | None:
    """Return the mean of the values that exist, each as often as its count, or None without any."""
    found = [(value, count) for value, count in zip(values, counts, strict=True) if value is not None]
    return sum(value * count for value, count in found) / sum(count for _, count in found) if found else None


def fit_voters(study: Study, run: RunFolder, rows: Sequence[dict[str, Any]], examples: Sequence[Example]) -> None:
    """Fit the voter of every EoR method on its answers and write them to voter.json, by reader and method."""
    by_id = {example.id: example for example in examples}
    fitted: dict[str, dict[str, Any]] = {}
    for config in study.methods:
        method = make(config, study)
        if not isinstance(method, EorMethod):
            continue
        for reader in study.readers:
            answers = [
                answers_of(row["trace"], by_id[row["question_id"]])
                for row in rows
                if row["method"] == config.label and row["reader"] == reader and "ensemble" in row["trace"]
            ]
            answers = [a for a in answers if a.right]
            if not answers:
                continue
            found: dict[str, Any] = {}
            try:
                found["voter"] = Voter(**method.voter).fit(answers, correctness(answers, study.metric)).to_dict()
            except InputError as error:
                found["error"] = str(error)
            fitted.setdefault(reader, {})[config.label] = {**found, "questions": len(answers)}
    run.write_json(VOTER, fitted)
