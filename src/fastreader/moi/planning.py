"""plan: what a re-ranking would score, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastreader.core.checks import check_whole
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.moi.cost import NOTHING, Cost, full_orderings
from fastreader.moi.designs import cyclic_for, prefixes
from fastreader.moi.identity import differing
from fastreader.moi.overflow import check_policy, fitted
from fastreader.moi.shipped import find
from fastreader.moi.types import PositionBias, check_position_bias
from fastreader.permutations import Design, Spec, pruned, resolve

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import PromptPieces, Template
    from fastreader.reader.session import Scorer

PassageLike = Passage | str


@dataclass(frozen=True, eq=False)
class Plan:
    """What `rerank` would score, and what that costs; nothing has run.

    Attributes:
        example: the question with the passages to score.
        tail: passages left out.
        design: orderings; None for a single passage.
        bias, bias_from: as in `Ranked`.
        cost: of the first scoring pass.
        truncated: tokens to be cut off each passage so that the orderings fit the context.
    """

    example: Example
    tail: list[Passage]
    design: Design | None
    bias: PositionBias | None
    bias_from: str
    cost: Cost
    truncated: Mapping[int, int] = field(default_factory=dict)

    def pieces(self, reader: Scorer, template: Template | None) -> PromptPieces:
        """The tokens of its question and passages."""
        from fastreader.reader.prompts.template import as_template, encode

        return encode(reader.encoder, as_template(template), self.example.question, self.example.passages, [])


def plan(
    reader: Scorer,
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    bias: PositionBias | None = None,
    *,
    max_passages: int = 10,
    permutations: Spec | None = None,
    prune: int | float | None = None,
    template: Template | None = None,
    seed: int = 0,
    on_overflow: str = "error",
    max_tokens: int | None = None,
) -> Plan:
    """What `rerank` with these arguments would score, and its cost in tokens, without running it.

    Args and errors as `rerank`; what a session keeps is counted as if it had to be read.
    """
    from fastreader.reader.prompts.template import as_template, encode
    from fastreader.scoring.api import permutation_cost
    from fastreader.scoring.prepare import places_to_read

    prompts = as_template(template)
    check_policy(on_overflow)
    example = as_example(question, passages)
    check_whole("max_passages", max_passages)
    tail = example.passages[max_passages:]
    example = replace(example, passages=example.passages[:max_passages], candidates=[])
    n = len(example.passages)
    if n == 1:
        return Plan(example, tail, None, bias, "given", NOTHING)
    length = places_to_read(example, prune, "the question")
    origin = "given"
    about = reader.describe()
    if bias is None:
        found = find(about, prompts.digest(), n, length)
        bias, origin = found if found is not None else (None, "none: random prefixes")
    else:
        _check(bias, n, length, about, prompts.digest())
    design = _design(bias, n, length, permutations, seed)
    pieces = encode(reader.encoder, prompts, example.question, example.passages, [])
    fit = fitted(pieces, design, reader.max_length, on_overflow, "the longest ordering")
    stats = permutation_cost(
        reader,
        example,
        permutations=design,
        template=prompts,
        question_only=True,
        score_passages=bias is not None and bias.kind == "joint",
        alone=bias is not None,
        on_overflow=on_overflow,
        max_tokens=max_tokens,
    )
    cost = Cost(stats.given, stats.computed, full_orderings(fit.pieces))
    return Plan(example, tail, design, bias, origin, cost, fit.truncated)


def _check(bias: PositionBias, n: int, length: int, reader: Mapping[str, str], template: str) -> None:
    """Refuse a bias of another use before anything is scored; both are named."""
    check_position_bias(bias)
    if (bias.passages, bias.length) != (n, length):
        raise InputError(
            f"bias: measured for N = {bias.passages} passages, L = {bias.length} places; the question has N = {n}, "
            f"L = {length}"
        )
    if wrong := differing("bias", bias.reader, bias.template, "scores", reader, template):
        raise InputError(f"bias: measured on something else than is to be scored: {'; '.join(wrong)}")
    if bias.kind == "candidate":
        raise InputError("bias: one of kind 'candidate' needs an answer to score; use score_permutations and debias")


def _design(bias: PositionBias | None, n: int, length: int, permutations: Spec | None, seed: int) -> Design:
    if permutations is not None:
        made = resolve(permutations, n, seed)
        if bias is None and made.length == n and length == n:
            raise InputError(
                "permutations: whole orderings need a calibration, and there is none for this reader, template and N; "
                "give bias, or leave permutations out"
            )
        if made.length < length and bias is not None:
            raise InputError(
                f"permutations: expected orderings of the bias's L = {length} places, got {made.length}; leave them "
                "out, or give a bias of as many places"
            )
        if bias is not None and len(made) < 2:
            raise InputError(
                "permutations: expected at least two orderings, whose difference tells of the passages; got one"
            )
        return made if made.length <= length else pruned(made, length)
    if bias is not None:
        return cyclic_for(bias, seed)
    return prefixes(n, length if length < n else None, seed)


def as_example(question: str | Example, passages: Sequence[PassageLike] | None) -> Example:
    """The question with its passages, checked.

    Raises:
        InputError: passages of both, of neither, or none; a question or passages that cannot be scored.
    """
    from fastreader.scoring import prepare as scoring_jobs

    example = scoring_jobs.as_example(question, passages, None)
    scoring_jobs.check_example(replace(example, candidates=[]), question_only=True, where="the question")
    return example
