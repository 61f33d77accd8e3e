"""Results of SuRe and of its variants, with every stage, as JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from fastreader.errors import InputError
from fastreader.reader.programs.costs import StageCost
from fastreader.sure.replies import CandidateReply

Matrix = list[list[float | None]]


class _Json:
    """What both results share: `to_dict` and `from_dict`."""

    costs: dict[str, StageCost]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; `from_dict` gives it back exactly."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`; keys that are not attributes are passed over.

        Raises:
            InputError: an attribute is missing or is not of its kind.
        """
        names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        known = {k: v for k, v in values.items() if k in names}
        try:
            known["costs"] = {stage: StageCost(**cost) for stage, cost in known["costs"].items()}
            if "found" in names:
                known["found"] = CandidateReply(**known["found"])
            return cls(**known)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{cls.__name__}.from_dict: {error!r} in values with keys {sorted(values)}") from error

    def total(self) -> StageCost:
        """The cost of all stages."""
        return sum(self.costs.values(), StageCost(0, 0, 0, 0, 0.0))


@dataclass(frozen=True)
class SureResult(_Json):
    """One question answered by SuRe, with every stage; K candidates.

    Attributes:
        question: the question.
        answer: the candidate of the largest score, the earlier one of equals; "" where the reader gave none.
        rationale: its summary; "" likewise.
        candidates: K texts.
        found: what candidates were read from which reply, and how.
        summaries: K texts.
        finishes: K times what ended the summary: "eos", "stop" or "length".
        validity: K times v, 1.0 where the summary supports its candidate, else 0.0 (Eq. 4); None where not asked.
        validity_probability: K shares of the label "True" against "False"; None in mode="generate".
        preference: [K, K], entry `[i][j]` the share of the label "Passage 1" when i stands first and j second; None on
            the diagonal, where not asked, and in mode="generate".
        replied: [K, K], entry `[i][j]` 1.0 where i, standing first, was preferred to j, 0.0 where j was, None where
            neither or not asked.
        pairwise: [K, K], entry `[i][j]` is 1.0 where i was preferred to j in both orders, 0.0 where j was, 0.5
            otherwise (Eq. 5); None on the diagonal and where not asked.
        ranking: K times r, the sum of the row of `pairwise`; None where not asked.
        scores: K times v + r, of what was used (Eq. 6).
        mode, candidates_prompt, use: as in `Settings`.
        num_passages: how many were given.
        costs: by stage: "candidates", "summaries", "validity", "ranking"; and "passages" where their keys and values
            were read once for candidates and summaries.
        notes: what was unusual.
        readers: name, device, dtype and precision of the reader, under "all", and of those of single stages.
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
    readers: dict[str, dict[str, str]]
    costs: dict[str, StageCost] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    method: str = "sure"
    id: str | None = None

    @property
    def best(self) -> int | None:
        """Index of the answer's candidate; None where there is none."""
        return self.scores.index(max(self.scores)) if self.scores else None

    def __repr__(self) -> str:
        lines = [f"SureResult({self.question!r} -> {self.answer!r}, {len(self.candidates)} candidates)"]
        for i, candidate in enumerate(self.candidates):
            parts = [f"v {self.validity[i]:g}"] if self.validity is not None else []
            parts += [f"r {self.ranking[i]:g}"] if self.ranking is not None else []
            lines.append(f"  {'>' if i == self.best else ' '} {candidate}: {self.scores[i]:g} ({', '.join(parts)})")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class MethodResult(_Json):
    """One question answered by a method other than SuRe.

    Attributes:
        question, answer: texts.
        method: its name in `variants.METHODS`.
        details: what the method looked at on the way, JSON values by name.
        num_passages, costs, notes, readers, id: as in `SureResult`.
    """

    question: str
    answer: str
    method: str
    num_passages: int
    readers: dict[str, dict[str, str]]
    details: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, StageCost] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    id: str | None = None

    def __repr__(self) -> str:
        head = f"MethodResult({self.question!r} -> {self.answer!r}, {self.method})"
        return "\n".join([head, *(f"  note: {note}" for note in self.notes)])


Result = SureResult | MethodResult


def result_from_dict(values: Mapping[str, Any]) -> Result:
    """A `SureResult` or a `MethodResult` from its `to_dict`.

    Raises:
        InputError: neither.
    """
    return SureResult.from_dict(values) if "found" in values else MethodResult.from_dict(values)
