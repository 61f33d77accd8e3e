"""Fit prompts into the model's context, by the policy that the caller chose and the result reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fastreader.core.checks import require
from fastreader.errors import ContextOverflowError
from fastreader.permutations import Design, Spec, explicit, pruned, resolve
from fastreader.reader.prompts.pieces import PromptPieces
from fastreader.scoring.options import ScoreOptions


@dataclass(frozen=True)
class Fitted:
    """Pieces and orderings that fit the context.

    Attributes:
        pieces: the prompt's pieces.
        design: the orderings.
        dropped: indices of dropped passages.
        truncated: number of tokens cut off each passage.
    """

    pieces: PromptPieces
    design: Design
    dropped: list[int] = field(default_factory=list)
    truncated: dict[int, int] = field(default_factory=dict)


def fit(
    pieces: PromptPieces, options: ScoreOptions, limit: int | None, where: str, length: int | None = None
) -> Fitted:
    """Choose the orderings and, if a prompt over them is too long, shorten it by the policy.

    "drop_passages" drops passages from the end of the given order, the retriever's least likely, until every ordering
    fits. A design by name or function is rebuilt for the remaining passages (with no more rows than they allow);
    explicit orderings lose the entries of dropped passages. "truncate" cuts all passages to the largest common length
    at which every ordering fits.

    Args:
        pieces: the prompt's pieces.
        options: permutations, seed, policy (`on_overflow`), and whether the question is scored after each passage.
        limit: the model's context in tokens; None for no limit.
        where: the example, for messages.
        length: read only this many places of each ordering; None reads all.

    Raises:
        ContextOverflowError: if the longest prompt is too long with policy "error", or even at its shortest.
        InputError: if the orderings are invalid.
    """
    permutations, seed, policy = options.permutations, options.seed, options.on_overflow
    count = len(pieces.passages)
    whole = resolve(permutations, count, seed=seed)
    for kept in range(count, 0, -1):
        design = whole if kept == count else _design_for(permutations, whole, kept, count, seed, where)
        if length is not None and length < design.length:
            design = pruned(design, length)
        alone = kept if options.query_likelihood else 0
        longest = _longest(pieces, design, alone)
        if limit is None or longest <= limit:
            return Fitted(pieces, design, dropped=list(range(kept, count)))
        if policy == "error":
            raise ContextOverflowError(
                f"{where}: its longest prompt has {longest} tokens, the model's context {limit}; give fewer or shorter "
                "passages, or another on_overflow"
            )
        if policy == "truncate":
            return _truncated(pieces, design, alone, limit, where)
    raise ContextOverflowError(f"{where}: even one passage is too long for the model's context of {limit} tokens")


def _longest(pieces: PromptPieces, design: Design, alone: int) -> int:
    """Return the number of inputs of the longest sequence: all but the last token of a candidate, or of the question.

    The first `alone` passages are also read alone, with the question.
    """
    body = max(map(pieces.body_length, design.permutations.tolist()))
    asked = len(pieces.question_lead) + max(len(pieces.question) - 1, 0)
    after = len(pieces.tail()) + max(map(len, pieces.candidates)) - 1 if pieces.candidates else asked
    longest = body + after
    for passage in range(alone):
        longest = max(longest, pieces.body_length([passage]) + asked)
    return len(pieces.head) + longest


def _design_for(permutations: Spec, design: Design, kept: int, count: int, seed: int, where: str) -> Design:
    if isinstance(permutations, str):
        name, colon, number = permutations.partition(":")
        most = {
            "random": math.factorial(kept),
            "latin": math.factorial(kept - 1),
            "prefix_sharing": kept * (1 + (kept - 1) * (kept - 2) // 2),
        }.get(name.strip().replace("-", "_"))
        if colon and most is not None:
            wanted = int(number) // count * kept if "prefix" in name else int(number)
            permutations = f"{name}:{min(wanted, most)}"
        return resolve(permutations, kept, seed=seed)
    if callable(permutations):
        return resolve(permutations, kept, seed=seed)
    left = ([p for p in order if p < kept] for order in design.permutations.tolist())
    rows = [list(row) for row in dict.fromkeys(map(tuple, left))]  # orders that only differed in what was dropped
    require(
        len({len(row) for row in rows}) == 1,
        f"{where}: on_overflow='drop_passages': orderings of part of the passages would differ in length "
        f"after dropping passages {kept} and up; name a design, or give orderings of all passages",
    )
    return replace(explicit(rows, kept), name=design.name)


def _truncated(pieces: PromptPieces, design: Design, alone: int, limit: int, where: str) -> Fitted:
    low, high = 0, max(len(tokens) for passage in pieces.passages for tokens in passage)
    while low < high:  # the largest cap that fits
        cap = (low + high + 1) // 2
        if _longest(_capped(pieces, cap), design, alone) <= limit:
            low = cap
        else:
            high = cap - 1
    if low == 0:
        raise ContextOverflowError(f"{where}: no room for any passage in the model's context of {limit} tokens")
    used = sorted({*design.permutations.ravel().tolist(), *range(alone)})
    cut = {p: max(len(tokens) for tokens in pieces.passages[p]) - low for p in used}
    return Fitted(_capped(pieces, low), design, truncated={p: n for p, n in cut.items() if n > 0})


def _capped(pieces: PromptPieces, cap: int) -> PromptPieces:
    return replace(pieces, passages=[[tokens[:cap] for tokens in passage] for passage in pieces.passages])
