"""Cut a prompt from the left, so that it and what follows it fit the model's context."""

from __future__ import annotations

from collections.abc import Sequence

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
