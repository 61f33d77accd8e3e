"""Prompts that are longer than the model's context: refused, or their passages cut, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastreader.errors import ContextOverflowError
from fastreader.permutations import Design, explicit

if TYPE_CHECKING:
    from fastreader.reader.prompts.pieces import PromptPieces
    from fastreader.scoring.overflow import Fitted

POLICIES = ("error", "truncate")  # passages are never dropped: a bias is of one N


def fitted(pieces: PromptPieces, design: Design, limit: int | None, on_overflow: str, what: str) -> Fitted:
    """Pieces whose longest prompt under the design fits the context of `limit` tokens.

    Raises:
        ContextOverflowError: it does not and `on_overflow` is "error", or not even with passages of one token.
    """
    found = _truncated(pieces, design, limit, what)
    if found.truncated and on_overflow == "error":
        raise ContextOverflowError(
            f"{what} does not fit the model's context of {limit} tokens without cutting up to "
            f"{max(found.truncated.values())} tokens off a passage; give fewer or shorter passages, or "
            "on_overflow='truncate'"
        )
    return found


def check_rounds(pieces: PromptPieces, length: int, limit: int | None) -> None:
    """Refuse rounds of prefixes of which some would have to be cut.

    Each round draws other prefixes, so that each would be cut to another length, and scores of different texts would
    pass for scores of one.

    Raises:
        ContextOverflowError: the `length` longest passages do not fit the context of `limit` tokens.
    """
    size = [len(pieces.body([p])) for p in range(len(pieces.passages))]
    longest = sorted(range(len(size)), key=lambda p: -size[p])[:length]
    if _truncated(pieces, explicit([longest], len(size)), limit, "stopping: a later round").truncated:
        raise ContextOverflowError(
            f"stopping: prefixes of the {length} longest passages do not fit the model's context of {limit} tokens, "
            "and each round would cut its own to another length; give fewer or shorter passages, or leave stopping out"
        )


def _truncated(pieces: PromptPieces, design: Design, limit: int | None, what: str) -> Fitted:
    from fastreader.scoring.options import ScoreOptions
    from fastreader.scoring.overflow import fit

    return fit(pieces, ScoreOptions(permutations=design, on_overflow="truncate"), limit, what)


def told(what: str, truncated: Mapping[int, int]) -> str:
    """What was cut, in words; empty where nothing was."""
    if not truncated:
        return ""
    passages = "1 passage was" if len(truncated) == 1 else f"{len(truncated)} passages were"
    return f"{passages} cut by up to {max(truncated.values())} tokens to fit the context when {what}"
