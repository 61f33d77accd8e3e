"""Measures by a model: equivalence to a right answer, support by cited passages, preference over the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastreader.core.protocol import ReaderProtocol
from fastreader.eor.similarity import CrossEncoderNli, NliTexts, Pair, ReaderNli, Similarity
from fastreader.eor.types import FloatArray
from fastreader.reader.prompts.texts import PromptTexts
from fastreader.study.measures.case import Case, Load, Measure, citations
from fastreader.study.measures.equivalence import AnswerEquivalence
from fastreader.study.measures.grades import JudgeTexts

JUDGES = ("equivalent", "preferred", "citation", "grade")
"""Judgements whose prompts a study may replace (`Study.judges`)."""

EQUIVALENT = 0.8
"""From this similarity on two answers are equivalent: the threshold that EoR uses with BEM."""


_PREFERENCE = NliTexts(
    lead="Compare two answers to a question.\nQuestion: {question}\n",
    first="Answer 1: {answer}\n",
    second="Answer 2: {answer}\n",
    ask="Which answer is better? Reply 1 or 2.",
    yes="1",
    no="2",
)
_SUPPORT = NliTexts(
    lead="Check an answer against a passage.\nQuestion: {question}\n",
    first="Passage: {answer}\n",
    second="Answer: {answer}\n",
    ask="Does the passage support the answer? Reply Yes or No.",
)


def prompt_of(judgement: str, judges: Mapping[str, Mapping[str, Any]]) -> PromptTexts:
    """Return the texts of a reader's prompt for one of `JUDGES`, with those replaced that a study names."""
    defaults: dict[str, PromptTexts] = {
        "equivalent": NliTexts(),
        "preferred": _PREFERENCE,
        "citation": _SUPPORT,
        "grade": JudgeTexts(),
    }
    default = defaults[judgement]
    return default.from_dict(default.to_dict() | dict(judges.get(judgement, {})))


def equivalent(model: str, load: Load, texts: NliTexts) -> Measure:
    """Return whether a model finds an answer equivalent to a right one, as BEM does (Bulian et al. 2022): 1 or 0.

    Equivalent means that a probability is at least `EQUIVALENT`: that of equivalence (`AnswerEquivalence`), or the mean
    probability of entailment in both directions. An empty answer is equivalent to nothing.

    Args:
        model: "bem:MODEL", a classifier of equivalence; "nli:MODEL", a classifier of entailment; or "reader:NAME", a
            reader that says whether one answer entails the other.
        load: returns a reader by name.
        texts: of a reader's prompt.
    """

    def measure(cases: Sequence[Case]) -> list[float | None]:
        right = [case.example.answers if case.answer.strip() else [] for case in cases]
        pairs = [Pair(c.example.question, r, c.answer) for c, own in zip(cases, right, strict=True) for r in own]
        means = iter(_equivalences(model, load, texts, pairs))
        best = [max((next(means) for _ in own), default=0.0) for own in right]
        return [float(b >= EQUIVALENT) if c.example.answers else None for b, c in zip(best, cases, strict=True)]

    return measure


def _equivalences(model: str, load: Load, texts: NliTexts, pairs: list[Pair]) -> FloatArray:
    """Return the probability for each pair of a right answer and an answer."""
    kind, _, name = model.partition(":")
    if kind == "bem":
        return AnswerEquivalence(name).probabilities(pairs) if pairs else np.zeros(0)
    similarity = _similarity(model, load, "{question} {answer}", texts)
    both = similarity.score(pairs + [Pair(p.question, p.second, p.first) for p in pairs])
    means: FloatArray = both.reshape(2, -1).mean(axis=0)
    return means


def supported(count: Callable[..., float | None], model: str, load: Load, texts: NliTexts) -> Measure:
    """Return `citation_precision` or `citation_recall` with a model that judges support, named as in `equivalent`."""

    def measure(cases: Sequence[Case]) -> list[float | None]:
        similarity = _similarity(model, load, "{answer}", texts)
        known: dict[Pair, float] = {}

        def of(case: Case) -> float | None:
            def supports(passage: str, answer: str) -> float:
                return known.setdefault(Pair(case.example.question, passage, answer), 0.0)

            return citations(case, count, supports)

        for case in cases:
            of(case)  # collects the pairs, so that all are judged together
        known |= dict(zip(known, similarity.score(list(known)).tolist(), strict=True))
        return [of(case) for case in cases]

    return measure


def preferred(name: str, load: Load, texts: NliTexts) -> Measure:
    """Return whether a reader prefers an answer to the baseline's: 1 or 0, and 0.5 if both orders disagree.

    The pair is shown in both orders, since judges favour a place, and the likelier of the replies "1" and "2" counts
    (the rule of SuRe's pairwise ranking, Eq. 5). Equal answers get 0.5 without being shown.

    Args:
        name: of the reader.
        load: returns a reader by name.
        texts: of its prompt.
    """

    def measure(cases: Sequence[Case]) -> list[float | None]:
        asked = [i for i, case in enumerate(cases) if case.baseline is not None and case.baseline != case.answer]
        found: list[float | None] = [None if case.baseline is None else 0.5 for case in cases]
        if asked:
            wins = _wins(load(name), texts, [cases[i] for i in asked])
            for i, value in zip(asked, wins, strict=True):
                found[i] = value
        return found

    return measure


def _wins(judge: ReaderProtocol, texts: NliTexts, cases: Sequence[Case]) -> list[float]:
    pairs = []
    for case in cases:
        assert case.baseline is not None
        for first, second in ((case.answer, case.baseline), (case.baseline, case.answer)):
            pairs.append(Pair(case.example.question, first, second))
    scores = texts.logprobs(judge, pairs).reshape(-1, 2, 2)
    first_wins = scores[:, :, 0] > scores[:, :, 1]  # [case, order]
    return [float(forward) if forward != backward else 0.5 for forward, backward in first_wins.tolist()]


def _similarity(model: str, load: Load, statement: str, texts: NliTexts) -> Similarity:
    kind, _, name = model.partition(":")
    return CrossEncoderNli(name, statement=statement) if kind == "nli" else ReaderNli(load(name), texts)
