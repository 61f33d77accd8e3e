"""Prompts cut from the left so that new tokens fit."""

import pytest

from fastreader.errors import ContextOverflowError
from fastreader.reader.fitting import leave_room

PROMPT = list(range(10))


def test_without_a_limit_nothing_is_cut():
    assert leave_room(PROMPT, 99, None, "truncate", name="prompt") is PROMPT


@pytest.mark.parametrize(("last_counts", "kept"), [(False, 7), (True, 6)])
def test_the_last_new_token_counts_for_an_engine_only(last_counts, kept):
    found = leave_room(PROMPT, 4, 10, "truncate", name="prompt", last_counts=last_counts)
    assert found == PROMPT[-kept:]


@pytest.mark.parametrize(("last_counts", "limit"), [(False, 10), (True, 11)])
def test_by_error_one_new_token_must_fit(last_counts, limit):
    options = {"name": "prompts[3]", "of": "m", "last_counts": last_counts}
    assert leave_room(PROMPT, 4, limit, "error", **options) == PROMPT
    message = rf"prompts\[3\] is 10 tokens long, the context of m is {limit - 1}: no room for a new token"
    with pytest.raises(ContextOverflowError, match=message):
        leave_room(PROMPT, 4, limit - 1, "error", **options)


@pytest.mark.parametrize(("last_counts", "new"), [(False, 11), (True, 10)])
def test_a_prompt_keeps_at_least_one_token(last_counts, new):
    options = {"name": "prompt", "new_name": "max_gen_toks", "last_counts": last_counts}
    assert leave_room(PROMPT, new - 1, 10, "truncate", **options) == PROMPT[-1:]
    with pytest.raises(ContextOverflowError, match=f"max_gen_toks: {new} tokens leave no room for a prompt"):
        leave_room(PROMPT, new, 10, "truncate", **options)
