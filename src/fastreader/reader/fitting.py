"""Cut a prompt, from the left or inside one piece, so that it and what follows it fit the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.core.protocol import ScoringReader
from fastreader.errors import ContextOverflowError


def leave_room(
    tokens: Sequence[int],
    new: int,
    limit: int | None,
    policy: str,
    *,
    name: str,
    new_name: str = "max_new_tokens",
    of: str = "the model",
    last_counts: bool = False,
) -> Sequence[int]:
    """Return a prompt, or the end of it that leaves room for new tokens.

    Args:
        tokens: the prompt.
        new: number of tokens that follow it.
        limit: the model's context in tokens; None for no limit.
        policy: "truncate" drops tokens from the left until all `new` tokens fit; "error" drops none and requires room
            for one new token, because generation stops at the end of the context.
        name, new_name: names of the prompt and of the argument that sets `new`, for messages.
        of: name of the model, for messages.
        last_counts: whether the last new token counts. The reader here never reads it, so that prompt and new tokens
            may be `limit` + 1 together; an engine counts it.

    Raises:
        ContextOverflowError: if there is no room for the new tokens, or (with "truncate") for a prompt before them.
    """
    if limit is None:
        return tokens
    most = limit if last_counts else limit + 1
    if policy == "error":
        if len(tokens) >= most:
            raise ContextOverflowError(
                f"{name} is {len(tokens)} tokens long, the context of {of} is {limit}: no room for a new token"
            )
        return tokens
    if new >= most:
        raise ContextOverflowError(
            f"{new_name}: {new} tokens leave no room for a prompt before them, the context of {of} is {limit}"
        )
    return tokens[-(most - new) :]


def prompt_around(
    reader: ScoringReader, pieces: tuple[str, str, str], new: int, policy: str, name: str, **chat: Any
) -> tuple[list[int], int]:
    """Return the prompt of three pieces, the middle one cut so that `new` tokens fit behind it, and how many were cut.

    Args:
        reader: encodes the pieces.
        pieces: what stands before a text, the text, and what follows it; none is empty.
        new: number of tokens that will be scored after the prompt.
        policy: "truncate" cuts the middle piece's end; "error" raises.
        name: of the text, for messages.
        chat: as `Reader.prompt` takes it.

    Raises:
        ContextOverflowError: if the outer pieces alone are too long, or (with "error") the prompt is.
    """
    tokens, limit = list(reader.prompt(pieces, **chat)), reader.max_length
    beyond = 0 if limit is None else len(tokens) + new - 1 - limit  # the last token is never read
    if beyond <= 0:
        return tokens, 0  # type: ignore[return-value]
    start, own = len(reader.prefix(pieces[:1], **chat)), len(reader.encoder.pieces(pieces[1:2])[0])
    if policy == "error":
        raise ContextOverflowError(f"{name} is {beyond} tokens too long for the {limit} of {reader.name}")
    if beyond >= own:
        raise ContextOverflowError(
            f"{name}: the rest of its prompt leaves no room in the {limit} tokens of {reader.name}"
        )
    return tokens[: start + own - beyond] + tokens[start + own :], beyond  # type: ignore[return-value]
