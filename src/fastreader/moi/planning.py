"""plan: what a re-ranking would score, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastreader.data.arguments import PassageLike, make_example
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.moi.cost import NOTHING, Cost, full_orderings
from fastreader.moi.designs import cyclic_for, prefixes
from fastreader.moi.identity import differing
from fastreader.moi.options import RerankOptions
from fastreader.moi.shipped import find
from fastreader.moi.types import PositionBias, check_position_bias
from fastreader.permutations import Design, Spec, pruned, resolve

if TYPE_CHECKING:
    from fastreader.core.protocol import Scorer
    from fastreader.reader.prompts.pieces import PromptPieces
    from fastreader.scoring.prepare import Job


@dataclass(frozen=True, eq=False)
class Plan:
    """What `rerank` would score, and what that costs; nothing has run.

    Attributes:
        example: the question with the passages to score.
        tail: passages left out.
        design: orderings; None for a single passage.
        bias, bias_source: as in `Ranked`.
        cost: of the first scoring pass.
        truncated: tokens to be cut off each passage so that the orderings fit the context.
        options: how to re-rank.
        pieces: tokens of the question and all its passages; None for a single passage.
        job: the first scoring pass; None for a single passage.
    """

    example: Example
    tail: list[Passage]
    design: Design | None
    bias: PositionBias | None
    bias_source: str
    cost: Cost
    options: RerankOptions
    truncated: Mapping[int, int] = field(default_factory=dict)
    pieces: PromptPieces | None = None
    job: Job | None = None


def plan(
    reader: Scorer,
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    bias: PositionBias | None = None,
    **options: Any,
) -> Plan:
    """Return what `rerank` with these arguments would score, and its cost in tokens, without running it.

    Args:
        reader, question, passages, bias: as for `rerank`.
        **options: its other arguments by keyword. Tokens that a session has cached are counted as computed.

    Raises:
        InputError, ContextOverflowError: as `rerank`.
    """
    return plan_example(reader, make_example(question, passages), bias, RerankOptions(**options))


def plan_example(
    reader: Scorer,
    example: Example,
    bias: PositionBias | None,
    options: RerankOptions,
    pieces: PromptPieces | None = None,
) -> Plan:
    """Plan a re-ranking of a checked example.

    Args:
        reader, bias: as for `rerank`.
        example: question and passages.
        options: how to re-rank.
        pieces: tokens of the question and its first `max_passages` passages, if they are known already.

    Raises:
        InputError, ContextOverflowError: as `rerank`.
    """
    from fastreader.scoring.prepare import encode_example, places_to_read, prepare

    where = "the question"
    scoring = options.scoring()
    tail = example.passages[options.max_passages :]
    example = replace(example, passages=example.passages[: options.max_passages], candidates=[])
    n = len(example.passages)
    if n == 1:
        return Plan(example, tail, None, bias, "given", NOTHING, options)
    length = places_to_read(example, scoring, where)
    origin, about, template = "given", reader.describe(), scoring.prompts.digest()
    if bias is None:
        found = find(about, template, n, length)
        bias, origin = found if found is not None else (None, "none: random prefixes")
    else:
        _check(bias, n, length, about, template)
    design = _design(bias, n, length, options.permutations, options.seed)
    if pieces is None:
        pieces = encode_example(reader, example, scoring, where)
    scoring = replace(
        scoring,
        permutations=design,
        prune=None,
        prune_mass=None,
        score_passages=bias is not None and bias.kind == "joint",
        query_likelihood=bias is not None,
    )
    job = prepare(reader, example, scoring, where, pieces)
    cost = Cost(job.stats.total_tokens, job.stats.computed_tokens, full_orderings(job.fitted.pieces))
    return Plan(example, tail, design, bias, origin, cost, options, job.fitted.truncated, pieces, job)


def _check(bias: PositionBias, n: int, length: int, reader: Mapping[str, str], template: str) -> None:
    """Refuse a bias of another use before anything is scored; both are named."""
    check_position_bias(bias)
    if (bias.num_passages, bias.length) != (n, length):
        raise InputError(
            f"bias: measured for N = {bias.num_passages} passages, L = {bias.length} places; the question has N = {n}, "
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
