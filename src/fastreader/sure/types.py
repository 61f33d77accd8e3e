"""Define the results of SuRe and of its variants, with every stage, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastreader.core.checked import checked_methods
from fastreader.data.record import SavedRecord
from fastreader.reader.programs.requests import StageCost
from fastreader.sure.replies import CandidateReply
from fastreader.sure.vote import Matrix, winner


@checked_methods
class _Costed(SavedRecord):
    """Base of both results: JSON and the total cost."""

    costs: dict[str, StageCost]
    notes: list[str]

    def total(self) -> StageCost:
        """Return the cost of all stages."""
        return sum(self.costs.values(), StageCost(0, 0, 0, 0, 0.0))

    def _lines(self, *lines: str) -> str:
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@checked_methods
@dataclass(frozen=True, repr=False)
class SureResult(_Costed):
    """One question answered by SuRe with K candidates, with every stage.

    Attributes:
        question: the question.
        answer: the candidate with the largest score, the earliest of equals; "" without candidates.
        rationale: the summary of the answer; "" without candidates.
        candidates: K texts.
        found: the parsed reply of the first stage.
        summaries: K texts.
        finishes: what ended each summary: "eos", "stop" or "length".
        validity: K values v, 1.0 if the summary supports its candidate, else 0.0 (Eq. 4); None if not used.
        validity_probability: K shares of the label "True" against "False"; None in mode="generate".
        preference: [K, K], entry `[i][j]` is the share of the label "Passage 1" when i comes first and j second; None
            on the diagonal, if not used, and in mode="generate".
        replied: [K, K], entry `[i][j]` is 1.0 if i, coming first, was preferred to j, 0.0 if j was, None if neither
            was or ranking was not used.
        pairwise: [K, K], entry `[i][j]` is 1.0 if i was preferred to j in both orders, 0.0 if j was, 0.5 otherwise
            (Eq. 5); None on the diagonal and if not used.
        ranking: K values r, the sums of the rows of `pairwise`; None if not used.
        scores: K values v + r of the evaluations used (Eq. 6).
        mode, candidates_prompt, use: as in `Settings`.
        num_passages: number of passages given.
        readers: name, device, dtype and precision of the reader, under "all", and of the readers of single stages.
        costs: cost by stage: "candidates", "summaries", "validity", "ranking"; and "passages" if their keys and values
            were read once for candidates and summaries.
        notes: remarks on anything unusual.
        method: "sure", or the name of the variant.
        id: the example's identifier.
    """

    question: str
    answer: str
    rationale: str
    candidates: list[str]
    found: CandidateReply
    summaries: list[str]
    finishes: list[str]
    validity: list[float] | None
    validity_probability: list[float | None]
    preference: Matrix
    replied: Matrix
    pairwise: Matrix
    ranking: list[float] | None
    scores: list[float]
    mode: str
    candidates_prompt: str
    use: list[str]
    num_passages: int
    readers: dict[str, dict[str, str]] = field(default_factory=dict)
    costs: dict[str, StageCost] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    method: str = "sure"
    id: str | None = None

    @property
    def best(self) -> int | None:
        """The index of the answer among the candidates, or None without candidates."""
        return winner(self.scores) if self.scores else None

    def __repr__(self) -> str:
        lines = [f"SureResult({self.question!r} -> {self.answer!r}, {len(self.candidates)} candidates)"]
        for i, candidate in enumerate(self.candidates):
            parts = [f"v {self.validity[i]:g}"] if self.validity is not None else []
            parts += [f"r {self.ranking[i]:g}"] if self.ranking is not None else []
            lines.append(f"  {'>' if i == self.best else ' '} {candidate}: {self.scores[i]:g} ({', '.join(parts)})")
        return self._lines(*lines)


@checked_methods
@dataclass(frozen=True, repr=False)
class MethodResult(_Costed):
    """One question answered by a method other than SuRe.

    Attributes:
        question, answer: texts.
        method: the method's name in `variants.METHODS`.
        details: intermediate values of the method, JSON values by name.
        num_passages, readers, costs, notes, id: as in `SureResult`.
    """

    question: str
    answer: str
    method: str
    num_passages: int
    readers: dict[str, dict[str, str]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, StageCost] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    id: str | None = None

    def __repr__(self) -> str:
        return self._lines(f"MethodResult({self.question!r} -> {self.answer!r}, {self.method})")


Result = SureResult | MethodResult


def result_from_dict(values: Mapping[str, Any]) -> Result:
    """Return a `SureResult` or a `MethodResult` from its `to_dict`.

    Raises:
        InputError: if `values` are neither.
    """
    return SureResult.from_dict(values) if "found" in values else MethodResult.from_dict(values)
