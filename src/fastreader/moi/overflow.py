"""Prompts that are longer than the model's context: refused, or their passages cut, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastreader.errors import ContextOverflowError, InputError
from fastreader.permutations import Design, explicit

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import PromptPieces
    from fastreader.scoring.overflow import Fitted

POLICIES = ("error", "truncate")  # passages are never dropped: a bias is of one N


def check_policy(on_overflow: str) -> None:
    """Refuse another policy than those of `POLICIES`."""
    if on_overflow not in POLICIES:
        raise InputError(f"on_overflow: expected 'error' or 'truncate', got {on_overflow!r}")


def fitted(pieces: PromptPieces, design: Design, limit: int | None, on_overflow: str, what: str) -> Fitted:
    """Pieces whose longest prompt under the design fits the context of `limit` tokens.

    Raises:
        ContextOverflowError: it does not and `on_overflow` is "error", or not even with passages of one token.
    """
    from fastreader.scoring.overflow import fit

    check_policy(on_overflow)
    found = fit(pieces, design, 0, limit, "truncate", what)
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
    from fastreader.scoring.overflow import fit

    size = [len(pieces.body([p])) for p in range(len(pieces.passages))]
    longest = sorted(range(len(size)), key=lambda p: -size[p])[:length]
    if fit(pieces, explicit([longest], len(size)), 0, limit, "truncate", "stop: a later round").truncated:
        raise ContextOverflowError(
            f"stop: prefixes of the {length} longest passages do not fit the model's context of {limit} tokens, and "
            "each round would cut its own to another length; give fewer or shorter passages, or leave stop out"
        )


def told(what: str, truncated: Mapping[int, int]) -> str:
    """What was cut, in words; empty where nothing was."""
    if not truncated:
        return ""
    passages = "1 passage was" if len(truncated) == 1 else f"{len(truncated)} passages were"
    return f"{passages} cut by up to {max(truncated.values())} tokens to fit the context when {what}"
